//! Grants and queue entries of other pods that carry names of this agent's: its session, or the id
//! of a grant that it wants or has.
//!
//! They are treated like any other pod's; `core/observed.rs` says why.

use crate::protocol::key::GrantKey;
use crate::protocol::lock::Lock;
use crate::store::Stored;

use super::bid::Bid;
use super::core::observed;
use super::{AcquireError, Agent};

impl Agent {
    /// Whether a grant or a queue entry is another pod's, whatever else it says.
    pub(super) fn is_foreign(&self, key: &GrantKey) -> bool {
        key.session.pod_uid != self.pod().uid
    }

    /// Whether another pod, or another session, holds the lock by the id that this bid has. No grant
    /// can come by that id any more.
    pub(super) fn is_taken_by_another_pod(&self, current: &Stored<Lock>, bid: &Bid) -> bool {
        let taken = current.value.grant.as_ref();
        let Some(grant) = taken.filter(|grant| grant.id == *bid.grant()) else {
            return false;
        };
        let is_taken = bid.key() != Some(grant.key());
        if is_taken {
            let resource = &current.value.resource;
            self.with_leases(|leases| observed::report_foreign(leases, resource, grant));
        }
        is_taken
    }
}

/// Why a caller cannot queue beside this entry.
pub(super) fn queued_by_another_pod(lock: &Lock, entry: &GrantKey) -> AcquireError {
    let mut entries = lock.waiters.entries().iter();
    let made = entries.find(|waiter| waiter.key() == *entry);
    let pod = made.map_or_else(String::new, |made| made.claimant.pod.name.to_string());
    AcquireError::QueuedByAnotherPod { pod }
}
