//! What goes into the core and what comes out of it, and the outbox between the two.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::agent::AcquireError;
use crate::protocol::ids::{GrantId, LeaseId, Resource, SessionId};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::object::{LockEvent, Page, StoreError, Stored};
use crate::protocol::session::Session;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{Revision, StoreWentBack};

use super::backoff::pause;
use super::history::{End, RequestKey};
use super::horizon::{Horizon, SeenAtSend};
use super::report::Report;

/// An unanswered call counts as `Ambiguous` this long after its time limit: the core does not
/// depend on the driver to make progress.
const OVERDUE_AFTER: Duration = Duration::from_secs(1);

/// A source of randomness, which the driver lends.
pub(in crate::agent) trait Rng {
    /// Returns a number that no other call returns.
    fn id(&mut self) -> u128;
    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    fn fraction(&mut self) -> f64;
}

/// The context of an input.
pub(in crate::agent) struct Cx<'a> {
    /// The time.
    pub(in crate::agent) now: Moment,
    /// The wall-clock time. Informational.
    pub(in crate::agent) wall: WallTime,
    /// Names and jitter.
    pub(in crate::agent) rng: &'a mut dyn Rng,
    /// Since when no lock needs the session; `None` if one does.
    pub(in crate::agent) idle_since: Option<Moment>,
    /// Returns whether a caller of this agent waits for a lock.
    pub(in crate::agent) is_awaited: &'a dyn Fn(&Resource) -> bool,
}

/// What a machine works with: the context of the input, and what all machines share.
pub(super) struct Env<'a> {
    pub(super) now: Moment,
    pub(super) wall: WallTime,
    pub(super) rng: &'a mut dyn Rng,
    pub(super) idle_since: Option<Moment>,
    pub(super) is_awaited: &'a dyn Fn(&Resource) -> bool,
    pub(super) out: &'a mut Outbox,
    pub(super) horizon: &'a mut Horizon,
}

impl<'a> Env<'a> {
    pub(super) fn of(cx: &'a mut Cx<'_>, out: &'a mut Outbox, horizon: &'a mut Horizon) -> Self {
        Self {
            now: cx.now,
            wall: cx.wall,
            rng: &mut *cx.rng,
            idle_since: cx.idle_since,
            is_awaited: cx.is_awaited,
            out,
            horizon,
        }
    }

    /// Asks for a call to the store.
    pub(super) fn call(&mut self, machine: Machine, call: StoreCall, limit: Duration) -> OpId {
        self.call_before(machine, call, limit, None)
    }

    /// Asks for a call to the store that is not sent any more from a moment on.
    pub(super) fn call_before(
        &mut self,
        machine: Machine,
        call: StoreCall,
        limit: Duration,
        not_after: Option<Moment>,
    ) -> OpId {
        let reads = match &call {
            StoreCall::GetLock(resource) => Some(resource.clone()),
            _ => None,
        };
        let in_flight = InFlight {
            machine,
            reads,
            sent_at: self.now,
            before: self.horizon.at_send(),
            overdue_at: self.now.after(limit).after(OVERDUE_AFTER),
        };
        self.out.call(call, limit, not_after, in_flight)
    }

    /// Returns the end of a random pause after so many failed attempts.
    pub(super) fn pause(&mut self, failures: u32, longest: Duration) -> Moment {
        self.now.after(pause(self.rng, failures, longest))
    }
}

/// Names a request that the core answers with [`Effect::Reply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::agent) struct CallId(pub(in crate::agent) u64);

/// Names a call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::agent) struct OpId(u64);

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
    /// A lock needs a session with at least half of its TTL left. `listed` is the store's revision,
    /// if a consistent list has just returned it. Answered with `Reply::Session`.
    NeedSession {
        /// Names the request.
        call: CallId,
        /// The revision of that list.
        listed: Option<Revision>,
    },
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
    /// A read showed a write of this revision, which the watch should have reported.
    WatchLate(Revision),
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
            Self::Lock(_) | Self::Page(_) | Self::WentBack(_) => Err(StoreError::no_result()),
        }
    }

    /// Returns the lock of an answer to a call about one; `None` if a read found none.
    pub(super) fn into_lock(self) -> Result<Option<Box<Stored<Lock>>>, StoreError> {
        match self {
            Self::Lock(lock) => Ok(lock),
            Self::Failed(error) => Err(error),
            Self::Session(_) | Self::Page(_) | Self::WentBack(_) => Err(StoreError::no_result()),
        }
    }

    /// Returns the page of an answer to a list.
    pub(super) fn into_page(self) -> Result<Box<Page<Lock>>, AcquireError> {
        match self {
            Self::Page(page) => Ok(page),
            Self::WentBack(error) => Err(error.into()),
            Self::Failed(error) => Err(error.into()),
            Self::Session(_) | Self::Lock(_) => Err(StoreError::no_result().into()),
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
    /// Wake the callers that wait for the end of a lease or a claim.
    WakeCallers,
    /// Wake the callers that wait for this lock.
    WakeWaiters(Resource),
    /// The session was lost, and with it every queue entry: wake all callers that wait.
    SessionLost,
    /// A lock was read, by a read that was sent at this moment.
    LockRead(Resource, Moment, Option<Box<Stored<Lock>>>),
    /// A lease of an election's lock began or ended at this moment.
    LeadChanged(Resource, Moment),
    /// The session holds this lock by a grant that the core does not know.
    UnknownGrant(Box<Stored<Lock>>),
    /// At this revision the session did not hold a lock.
    NotHeld(Resource, Revision),
    /// At this revision the session held only these locks.
    OnlyHeld(BTreeSet<Resource>, Revision),
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
    /// The session as it is now.
    Session,
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
}

/// The end of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct EndedLease {
    pub(in crate::agent) lease: LeaseId,
    pub(in crate::agent) end: End,
    /// Whether a release of its grant may be sent from here on.
    pub(in crate::agent) gives_back: bool,
    /// The request that it answered.
    pub(in crate::agent) request: Option<RequestKey>,
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
    /// The session to acquire with.
    Session(Result<SessionId, AcquireError>),
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

/// The machine that a call belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Machine {
    Session,
    Ending,
    Watch,
    WarmLook,
    Release(GrantId),
    Leftover(GrantId),
    Lost(LeaseId),
}

/// The effects that the driver has not taken yet, and the calls that are in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    effects: VecDeque<Effect>,
    /// One waking after a step is enough, however many leases have ended in it.
    wakes_streams: bool,
    wakes_callers: bool,
    in_flight: BTreeMap<OpId, InFlight>,
    last_op: u64,
}

/// A call that was not answered yet.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    /// The machine that waits for the answer.
    pub(super) machine: Machine,
    /// What the answer of a list is compared with.
    pub(super) before: SeenAtSend,
    /// The lock that is read.
    pub(super) reads: Option<Resource>,
    pub(super) sent_at: Moment,
    overdue_at: Moment,
}

impl Outbox {
    pub(super) fn push(&mut self, effect: Effect) {
        match effect {
            Effect::WakeStreams => self.wakes_streams = true,
            Effect::WakeCallers => self.wakes_callers = true,
            effect => self.effects.push_back(effect),
        }
    }

    pub(super) fn report(&mut self, report: Report) {
        self.push(Effect::Report(report));
    }

    fn call(
        &mut self,
        call: StoreCall,
        limit: Duration,
        not_after: Option<Moment>,
        in_flight: InFlight,
    ) -> OpId {
        self.last_op += 1;
        let op = OpId(self.last_op);
        self.in_flight.insert(op, in_flight);
        self.push(Effect::Call {
            op,
            call,
            limit,
            not_after,
        });
        op
    }

    pub(super) fn poll(&mut self) -> Option<Effect> {
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        if std::mem::take(&mut self.wakes_streams) {
            return Some(Effect::WakeStreams);
        }
        std::mem::take(&mut self.wakes_callers).then_some(Effect::WakeCallers)
    }

    /// Returns the call that is answered, once.
    pub(super) fn answered(&mut self, op: OpId) -> Option<InFlight> {
        self.in_flight.remove(&op)
    }

    /// Returns whether a call was not answered yet.
    pub(super) fn is_in_flight(&self, op: OpId) -> bool {
        self.in_flight.contains_key(&op)
    }

    /// Returns a call that the driver should have answered by now.
    pub(super) fn overdue(&self, now: Moment) -> Option<OpId> {
        let mut calls = self.in_flight.iter();
        let overdue = calls.find(|(_, call)| now >= call.overdue_at);
        overdue.map(|(op, _)| *op)
    }

    pub(super) fn next_overdue(&self) -> Option<Moment> {
        self.in_flight.values().map(|call| call.overdue_at).min()
    }
}
