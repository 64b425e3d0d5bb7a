//! What goes into the core and what comes out of it.

use std::time::Duration;

use crate::agent::api::{AcquireError, AcquireRequest, Acquired};
use crate::protocol::ids::{LeaseId, Resource, SessionId};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::object::{LockAtRevision, LockEvent, Page, StoreError, Stored};
use crate::protocol::queue::Waiter;
use crate::protocol::session::Session;
use crate::protocol::time::Moment;
use crate::protocol::token::{Revision, StoreWentBack};

use super::history::{EndedLease, RequestKey};
use super::report::Report;
use super::saved::SavedSession;

/// Names a request that the core answers with [`Effect::Reply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::agent) struct CallId(pub(in crate::agent) u64);

/// Names a call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::agent) struct OpId(pub(super) u64);

/// Names one opening of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::agent) struct WatchId(u64);

impl WatchId {
    /// Returns the name of the next one.
    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Input {
    /// A request for a lock, which arrived at this moment. Answered with `Reply::Acquired`.
    Acquire(CallId, Box<AcquireRequest>, Moment),
    /// The client of a call for a lock hung up before that was answered. Answered with `Reply::Done`.
    HangUp(CallId),
    /// No client received the answer with this lease.
    Undelivered(LeaseId),
    /// The agent takes no new leases.
    Drain,
    /// End the session. Answered with `Reply::Done` once the attempt has ended, successful or not.
    EndSession(CallId),
    /// Begin no further renewal. Answered with `Reply::Done` once none is in flight.
    StopRenewing(CallId),
    /// The answer to a call.
    Answer(OpId, Answer),
    /// Something about a watch.
    Watch(WatchId, WatchInput),
    /// The moment of `poll_timeout` may have come.
    Timer,
}

/// What happened to a watch.
#[derive(Clone, Debug)]
pub(in crate::agent) enum WatchInput {
    /// The store accepted it.
    Opened,
    /// It reported an event.
    Event(LockEvent),
    /// It ended without an error.
    Ended,
    /// It failed, or was not accepted.
    Failed(StoreError),
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Answer {
    /// A session, as it was read or written; `None` if a read found none.
    Session(Option<Box<Stored<Session>>>),
    /// A lock, as it was read or written; `None` if a read found none.
    Lock(Option<Box<Stored<Lock>>>),
    /// A lock, with the store's revision at which it was read.
    LockWithRevision(Box<LockAtRevision>),
    /// A page of locks.
    Page(Box<Page<Lock>>),
    /// No answer, or an error.
    Failed(StoreError),
    /// A list is below what had been seen before. Only the core itself finds that.
    WentBack(StoreWentBack),
}

impl Answer {
    /// Returns the session of an answer to a call about one; `None` if a read found none.
    pub(super) fn into_session(self) -> Result<Option<Box<Stored<Session>>>, StoreError> {
        match self {
            Self::Session(session) => Ok(session),
            Self::Failed(error) => Err(error),
            Self::Lock(_) | Self::LockWithRevision(_) | Self::Page(_) | Self::WentBack(_) => {
                Err(StoreError::no_result())
            }
        }
    }

    /// Returns the lock of an answer to a call about one; `None` if a read found none.
    pub(super) fn into_lock(self) -> Result<Option<Box<Stored<Lock>>>, StoreError> {
        match self {
            Self::Lock(lock) => Ok(lock),
            Self::Failed(error) => Err(error),
            Self::Session(_) | Self::LockWithRevision(_) | Self::Page(_) | Self::WentBack(_) => {
                Err(StoreError::no_result())
            }
        }
    }

    /// Returns the page of an answer to a list.
    pub(super) fn into_page(self) -> Result<Box<Page<Lock>>, AcquireError> {
        match self {
            Self::Page(page) => Ok(page),
            Self::WentBack(error) => Err(error.into()),
            Self::Failed(error) => Err(error.into()),
            Self::Session(_) | Self::Lock(_) | Self::LockWithRevision(_) => {
                Err(StoreError::no_result().into())
            }
        }
    }
}

/// What the driver has to do.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Effect {
    /// Make a call to the store, within a time limit, and feed its answer back.
    Call {
        /// Names the call.
        op: OpId,
        /// What to call.
        call: StoreCall,
        /// After how long it counts as unanswered.
        limit: Duration,
        /// From when on it is not sent any more, but answered as not applied.
        not_after: Option<Moment>,
    },
    /// Write a record to the state file, before any later effect.
    Persist(Record),
    /// Open or close a watch.
    Watch(WatchCommand),
    /// Answer a request.
    Reply(CallId, Reply),
    /// Wake the streams of events, which then check what is true.
    WakeStreams,
    /// A lease, a claim, a release or a leftover ended: wake whoever waits for that.
    SomethingEnded,
    /// More is known of a lock that callers wait for.
    OutlookChanged,
    /// A lease is over, or it is known why: wake its streams.
    LeaseOver(LeaseId),
    /// A lock was read, by a read that was sent at this moment.
    LockRead(Resource, Moment, Option<Box<Stored<Lock>>>),
    /// A lease of an election's lock began or ended at this moment.
    LeadChanged(Resource, Moment),
    /// Log or count something.
    Report(Report),
}

/// A call to the store.
#[derive(Clone, Debug)]
pub(in crate::agent) enum StoreCall {
    /// Read a session.
    GetSession(SessionId),
    /// Create a session.
    CreateSession(Box<Session>),
    /// Write a session, if it is still at the version that was read.
    UpdateSession(Box<Stored<Session>>, Box<Session>),
    /// Read a lock.
    GetLock(Resource),
    /// Read a lock together with the store's revision.
    GetLockWithRevision(Resource),
    /// Create a lock.
    CreateLock(Resource),
    /// Add an entry to the queue of a lock, as it was read.
    JoinLock(Box<Stored<Lock>>, Box<Waiter>),
    /// Write a lock, if it is still at the version that was read.
    UpdateLock(Box<Stored<Lock>>, Box<Lock>),
    /// List one lock, for the store's revision.
    ListOne,
    /// List the locks that a session holds.
    ListHeld(SessionId),
}

/// What is written to the state file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Record {
    /// The session.
    Session(SavedSession),
    /// The session is over.
    SessionOver,
    /// A lease as it is now, unless its end follows.
    Lease(LeaseId),
    /// What keeps a lease alive now.
    Life(LeaseId),
    /// The end of a lease.
    Ended(EndedLease),
    /// No caller received the answer to this request.
    Unheard(RequestKey),
    /// Rewrite the file. If that fails, its content stays valid.
    Compaction,
    /// Rewrite the file. If that fails, remove it: its content is not valid any more.
    Replacement,
}

/// Opens or closes a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum WatchCommand {
    /// Watch what a session holds, after a revision. Any earlier watch is closed.
    Open(WatchId, SessionId, Revision),
    /// Close the watch.
    Close,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Reply {
    /// What a request for a lock led to.
    Acquired(Box<Result<Acquired, AcquireError>>),
    /// It is done.
    Done,
}

/// A session that is no longer this agent's.
#[derive(Clone, Debug)]
pub(super) struct LostSession {
    pub(super) session: Session,
    /// Why.
    pub(super) loss: Loss,
    /// Its renewal that is still in flight.
    pub(super) in_flight: Option<OpId>,
}
