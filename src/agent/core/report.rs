//! What the core has to say to people. Its texts and metrics are the driver's.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::ids::SessionId;
use crate::protocol::object::StoreError;
use crate::protocol::token::{Revision, StoreWentBack};

/// Something to log or to count.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Report {
    /// A session began.
    SessionStarted(SessionId, Duration),
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
    /// The session was revoked because this pod was reported as ended, by this actor.
    PodReportedEnded(SessionId, Arc<str>),
    /// The store's revision leapt.
    StoreRestored(Revision),
    /// The store lost writes.
    StoreWentBack(StoreWentBack),
    /// The watch was interrupted.
    WatchInterrupted(SessionId, StoreError),
    /// Listing what the session holds failed, and is retried.
    ListingFailed(SessionId, StoreError),
}
