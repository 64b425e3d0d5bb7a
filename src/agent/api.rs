//! What callers ask of the agent and what they are answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::completed::Completed;
use crate::protocol::election::ElectionName;
use crate::protocol::ids::{LeaseId, OwnerId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{StoreWentBack, Token, TokenExhausted};
use crate::store::StoreError;

/// What keeps a lease alive, beside its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Life {
    /// The app renews it; silent for so long, it has given the lease up.
    Ttl(Duration),
    /// A connection: its end releases the lease.
    Connection {
        /// After how long the lease ends in any case.
        max_hold: Duration,
    },
    /// Nothing: it is the agent's own, in an election that it runs for, and lives as long as the
    /// session.
    Campaign,
}

/// A request for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireRequest {
    /// What to lock.
    pub resource: Resource,
    /// Who asks; the pod's name when the app does not say.
    pub owner: OwnerId,
    /// What shall keep the lease alive.
    pub life: Life,
    /// What the app says of itself, for people.
    pub metadata: BTreeMap<String, String>,
    /// How long to wait for it; zero is one try.
    pub wait: Duration,
    /// Whether its entry in the queue of an election is before those that are not preferred. The one
    /// entry of a pod is as its first caller asks.
    pub preferred: bool,
    /// How long the grant is kept after the lease, in case the app comes back; zero is not at all.
    pub keep: Duration,
    /// The app's name for this request, among those of its owner for this resource: a repetition gets the
    /// same lease.
    pub request_id: Option<String>,
}

impl AcquireRequest {
    /// What makes a repetition of a `requestId` the same request. How long it waits does not: a
    /// client that repeats has less time left.
    pub(super) fn body(&self) -> (Life, Duration, &BTreeMap<String, String>) {
        (self.life, self.keep, &self.metadata)
    }
}

/// A lease as its app sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// What is locked.
    pub resource: Resource,
    /// Who holds it.
    pub owner: OwnerId,
    /// Names the lease in renew and release.
    pub lease: LeaseId,
    /// The fencing token, to be sent with every write to what the lock guards.
    pub token: Token,
    /// How long the app may act, from when it sent the request.
    pub valid_for: Duration,
    /// The same as a wall-clock time, for people.
    pub expires_at: WallTime,
    /// When the app had best ask again, from when it sent the request.
    pub renew_after: Duration,
    /// The work that had succeeded under this lock when it was last seen.
    pub completed: Completed,
    /// What a person asks of the app.
    pub asked: Option<Arc<ReleaseRequest>>,
}

/// What a try came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The lock is the caller's.
    Granted {
        /// The lease.
        lease: LeaseView,
        /// Whether this repeats the answer to the same `requestId`.
        replayed: bool,
    },
    /// Another session has it, or this pod: for another lease, for an earlier caller, or on its way back.
    Held(Box<HeldView>),
}

/// A lock that a caller does not get, as far as the agent knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldView {
    /// The holder.
    pub holder: HolderView,
    /// The number of waiters, without the caller.
    pub queue_length: usize,
    /// The position of this pod's entry in the lock's queue, from 1; none without an entry.
    pub position: Option<usize>,
    /// The first entries before this pod's, the oldest first. Without an entry: the first of the queue.
    pub ahead: Vec<WaiterView>,
    /// The silence of the holder's session; none unless the agent has read the session and may take over.
    pub silence: Option<Silence>,
    /// A sentence for people about why the caller did not get it, if there is more to say.
    pub hint: Option<String>,
}

/// An entry in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// The name that its app gave.
    pub owner: OwnerId,
    /// Its pod.
    pub pod: String,
    /// Since when it waits, by the clock of its pod. Informational.
    pub queued_at: WallTime,
}

/// How long a session was not seen to be renewed, by the clock of this agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// When its last known renewal was observed. It may have been renewed since it was last read.
    pub since: Moment,
    /// When it is proven to be expired, if it is not renewed.
    pub until: Moment,
}

/// The holder of a lock, as the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// Who the app said it is.
    pub owner: OwnerId,
    /// Its pod.
    pub pod: String,
    /// The first token of its grant.
    pub token: Token,
    /// Since when, for people.
    pub acquired_at: WallTime,
    /// What it wrote about itself.
    pub metadata: BTreeMap<String, String>,
    /// Whether its pod keeps the lock between leases: who queues is given it, if it is not in use.
    pub kept: bool,
}

/// As many streams of events are open as may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this agent has {limit} event streams open, the maximum")]
pub struct TooManyStreams {
    /// The bound.
    pub limit: usize,
}

/// Why an acquire came to nothing; nobody holds a grant through it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// The agent serves as many leases as it may.
    #[error("this agent serves {limit} leases, the maximum")]
    TooManyLeases {
        /// The bound.
        limit: usize,
    },
    /// As many callers wait as may.
    #[error("{limit} callers of this agent wait for locks, the maximum")]
    TooManyWaiting {
        /// The bound.
        limit: usize,
    },
    /// As many streams of events are open as may be.
    #[error(transparent)]
    TooManyStreams(#[from] TooManyStreams),
    /// The request id was used with another body.
    #[error("this requestId was already used with another body")]
    RequestIdReused,
    /// The request was answered before, with a lease that is over.
    #[error("this requestId returned lease {lease}, which has ended")]
    RequestEnded {
        /// The lease.
        lease: LeaseId,
        /// How it ended.
        #[source]
        why: LeaseError,
    },
    /// The agent was started anew, and does not know yet which locks it holds.
    #[error("the agent restarted and has not yet resumed its session")]
    Resuming,
    /// The agent is stopping.
    #[error("the agent is shutting down and takes no new leases")]
    ShuttingDown,
    /// No token can be made.
    #[error(transparent)]
    TokenExhausted(#[from] TokenExhausted),
    /// The store lost writes.
    #[error(transparent)]
    StoreWentBack(#[from] StoreWentBack),
    /// Somebody ended the grant before its lease could be told.
    #[error("the grant was ended before it was returned")]
    GrantEnded,
    /// Another pod has an entry in the lock's queue under this pod's session, which can have one
    /// only.
    #[error(
        "pod {pod} has a queue entry for this lock under this pod's session; delete that pod or its \
         entry in status.waiters"
    )]
    QueuedByAnotherPod {
        /// The other pod's name, as its entry says.
        pod: String,
    },
    /// The pod was reported as ended, so each session of it is revoked as soon as it is seen.
    #[error(
        "this pod was reported as ended, so its session was revoked; no new session starts for {} s",
        left.as_secs() + 1
    )]
    ReportedEnded {
        /// For how long.
        left: Duration,
    },
    /// The session ended while the lock was being taken.
    #[error("the session ended during the acquire")]
    SessionLost,
    /// The store did not do its part.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a hold ended without a lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The lock was held until the wait was over.
    #[error("the lock is held")]
    Held {
        /// The lock.
        resource: Resource,
        /// What keeps it from the caller.
        held: Box<HeldView>,
        /// The wait of the request; zero for a try.
        wait: Duration,
        /// When the wait was over.
        at: Moment,
    },
    /// The acquire failed.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
}

/// Why a lease cannot be renewed, read or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// The agent never gave it, or it ended more than 10 minutes ago.
    #[error("lease not found")]
    Unknown,
    /// The agent was started anew, and it is not sure yet that the lease goes on.
    #[error("the agent restarted and has not yet resumed the lease")]
    Resuming,
    /// It ended without the app's asking.
    #[error("the lease was lost: {0}")]
    Lost(Loss),
    /// The app released it.
    #[error("the lease was released")]
    Released,
}

/// Why a completion is not confirmed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompleteError {
    /// The lease has ended, or does not exist.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The store refused the record, or did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a release came to. The lease is over in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The store says that the lock is no longer ours, or this agent keeps it for its next lease.
    Done,
    /// The store is away; the agent goes on trying.
    Pending,
}

/// A lock as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// What it guards.
    pub resource: Resource,
    /// Who holds it; none when it is free.
    pub holder: Option<HolderView>,
    /// The first token of the current or last grant.
    pub token: Token,
    /// How many wait.
    pub queue_length: usize,
    /// How often it was granted.
    pub transitions: u64,
}

/// Some of the namespace's locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockPage {
    /// The locks whose resource has the prefix.
    pub locks: Vec<LockView>,
    /// Where the next page starts; none on the last one.
    pub next: Option<String>,
    /// Lock objects that could not be read, each with the reason.
    pub unreadable: Vec<String>,
}

/// What the store says of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// It belongs to the current grant.
    Current {
        /// Whether it is known to be the very lease's token (the grant is this agent's).
        exact: bool,
    },
    /// A newer one was given, or the lock is free.
    Stale {
        /// The first token of the current or last grant.
        latest: Token,
    },
    /// It was never given.
    Unknown {
        /// The first token of the current or last grant.
        latest: Token,
    },
}

/// Why a question could not be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The store did not answer, or refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store lost writes.
    #[error(transparent)]
    StoreWentBack(#[from] StoreWentBack),
}

/// An election as this agent sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionView {
    /// Which.
    pub election: ElectionName,
    /// How this agent leads; none when it does not.
    pub lead: Option<Lead>,
    /// Who leads; none when nobody does, or when that cannot be known of others.
    pub holder: Option<HolderView>,
    /// The leader's token, exact for a leader here; else the first of the last term.
    pub token: Token,
    /// How long ago the store said so; none for what this agent knows by itself, and where nothing
    /// is known.
    pub age: Option<Duration>,
}

/// The lead, by a lease of this agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The lease.
    pub lease: LeaseId,
    /// How long the app may act as the leader, from when it sent the request.
    pub valid_for: Duration,
}

/// Why a question about an election has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElectionError {
    /// Nobody has run for it.
    #[error("election {0} has had no candidate yet")]
    Unknown(ElectionName),
    /// The store is not asked with success, and nothing is known from before.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// As many streams are open as may be.
    #[error(transparent)]
    TooManyStreams(#[from] TooManyStreams),
}
