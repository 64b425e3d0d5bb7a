//! What the core logs and counts. The texts and the metrics are the driver's.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::ids::{GrantId, LeaseId, OwnerId, Resource, SessionId};
use crate::protocol::key::GrantKey;
use crate::protocol::lease::Loss;
use crate::protocol::object::StoreError;
use crate::protocol::session::PodRef;
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::token::{Revision, StoreWentBack, Token};

use super::discard::DiscardReason;

/// What an incident says: its actor and its reason.
pub(in crate::agent) type Said = (Arc<str>, Arc<str>);

/// Something to log or to count.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Report {
    /// A session began.
    SessionStarted(SessionId, Duration),
    /// Something about the session of an earlier process.
    Resumption(ResumptionReport),
    /// The session was ended because it was idle.
    IdleSessionEnded(SessionId),
    /// Writing that the session has ended failed, and is not retried.
    EndingSessionFailed(SessionId, StoreError),
    /// Writing that a lost session has ended failed, and is retried.
    RevokingSessionFailed(SessionId, StoreError),
    /// A renewal was confirmed.
    Renewed,
    /// A renewal failed; so much is left of the session.
    RenewalFailed(SessionId, StoreError, Duration),
    /// A renewal showed that the session is lost.
    RenewalLost,
    /// A session was revoked because this pod was reported as ended, by this actor.
    PodReportedEnded(Arc<str>),
    /// A release has ended.
    Released,
    /// A release failed, and is retried.
    ReleaseFailed(Resource, StoreError),
    /// A release was given up.
    ReleaseAbandoned,
    /// The store refused the record of a release request by this actor.
    RequestNotRecorded(Resource, Arc<str>),
    /// A person ended the grant of this lease; actor and reason.
    ForceReleased(LeaseId, Option<Said>),
    /// Another session was given the lock of this lease; actor and reason.
    Reassigned(LeaseId, Option<Said>),
    /// The lock no longer names the grant of this lease.
    NotNamed(LeaseId),
    /// A released lease counts as lost.
    ReleasedLeaseLost(Loss),
    /// A lock was acquired; from a warm grant or from the store.
    LockAcquired(Summary, bool),
    /// A lease was released; its grant is kept or not.
    LeaseReleased(Summary, bool),
    /// A lease was lost.
    LeaseLost(Summary, Loss),
    /// A session was lost, and with it so many leases.
    SessionLost(SessionId, Loss, usize),
    /// Something about a claim.
    Claim(ClaimReport),
    /// A warm grant is gone.
    WarmGrantLost(Resource),
    /// Another pod's grant has a name of this agent's.
    ForeignGrant(Resource, GrantKey, PodRef),
    /// A person asks for the release of this lease.
    ReleaseRequested(Resource, LeaseId, Arc<ReleaseRequest>),
    /// Locks of the session cannot be read, each with the reason.
    UnreadableLocks(SessionId, Vec<String>),
    /// The store's revision leapt.
    StoreRestored(Revision),
    /// The store lost writes.
    StoreWentBack(StoreWentBack),
    /// The watch was interrupted.
    WatchInterrupted(SessionId, StoreError),
    /// Listing what the session holds failed, and is retried.
    ListingFailed(SessionId, StoreError),
}

/// Something about the session of an earlier process.
#[derive(Clone, Debug)]
pub(in crate::agent) enum ResumptionReport {
    /// It continues, with so many leases. So many others are lost, and so many grants are released at
    /// once and later.
    Continues {
        session: SessionId,
        leases: usize,
        lost: usize,
        released: usize,
        released_later: usize,
    },
    /// One of its leases does not continue.
    LeaseLost(LeaseId, Token, Loss),
    /// It does not continue, and so many leases with it.
    Discarded(DiscardReason, SessionId, usize),
    /// A call failed, and is retried.
    CallFailed(StoreError),
}

impl From<ResumptionReport> for Report {
    fn from(report: ResumptionReport) -> Self {
        Self::Resumption(report)
    }
}

/// Something about a claim.
#[derive(Clone, Debug)]
pub(in crate::agent) enum ClaimReport {
    /// A grant without a caller was found.
    GrantWithoutCaller(Resource, GrantId),
    /// Removing a queue entry failed, and is retried.
    LeavingQueueFailed(Resource, StoreError),
    /// A take-over was denied, for this reason.
    TakeOverDenied(String),
    /// An expired session was revoked.
    SessionRevoked(SessionId),
    /// The session of a waiter could not be read.
    WaiterUnknown(SessionId, StoreError),
    /// The watch did not report a hand-over in time.
    WatchLate,
    /// A claim has an entry in the queue, with so many before it.
    Queued(Resource, OwnerId, usize),
    /// A grant that no lease or release is known of is released.
    OrphanedGrant(Resource, GrantId),
    /// The token of a grant is raised, because the store's revision leapt.
    TokenRaised(Resource, Token, Revision),
    /// The owner of a grant could not be changed.
    RenameFailed(Resource, StoreError),
    /// A client that waited for a lock hung up, after so long.
    HungUp(Resource, OwnerId, Duration),
    /// A lease was released because no client received it.
    LeaseUndelivered(LeaseId),
}

impl From<ClaimReport> for Report {
    fn from(report: ClaimReport) -> Self {
        Self::Claim(report)
    }
}

/// What is logged of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Summary {
    pub(in crate::agent) resource: Resource,
    pub(in crate::agent) lease: LeaseId,
    pub(in crate::agent) owner: OwnerId,
    pub(in crate::agent) token: Token,
    /// How long it has lasted.
    pub(in crate::agent) lasted: Duration,
}
