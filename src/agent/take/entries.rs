//! Queue entries of this pod that nobody here waits for any more. Each leaves by compare-and-swap, in a
//! task that outlives its caller.

use crate::agent::{Agent, CALL_LIMIT};
use crate::protocol::ids::Resource;
use crate::protocol::key::GrantKey;
use crate::protocol::lock::Lock;
use crate::protocol::queue::Waiter;
use crate::store::{StoreError, Stored, within};

/// How many queue entries of one pod the admission policies allow.
const ENTRIES_OF_A_POD: usize = 2;

impl Agent {
    /// Our session stands in the queue for a grant that nobody here waits for any more; it leaves
    /// before another app of this pod can join.
    pub(super) fn leave_old_place(&self, resource: &Resource, entry: GrantKey) {
        if !self.state().core.releases.has(&entry.id) {
            // Nobody waits for it; the next round reads what came of it.
            let _done = self.clear_leftover(resource.clone(), entry, None);
        }
    }

    /// Former sessions of this pod may have left as many entries as it may have, and others remove these
    /// only when the lock's grant ends. Those whose session is over leave. Returns whether any does.
    pub(super) async fn leave_former_entries(
        &self,
        current: &Stored<Lock>,
        own: &Waiter,
    ) -> Result<bool, StoreError> {
        let own = own.key();
        let entries = current.value.waiters.entries().iter().map(Waiter::key);
        let others: Vec<GrantKey> = entries
            .filter(|entry| entry.session.pod_uid == own.session.pod_uid)
            .filter(|entry| entry.session.id != own.session.id)
            .collect();
        if others.len() < ENTRIES_OF_A_POD {
            return Ok(false);
        }
        let mut leaves = false;
        for entry in others {
            let session = within(CALL_LIMIT, self.0.sessions.get(&entry.session.id)).await?;
            // One that lives is another agent's in this pod.
            if session.is_none_or(|session| session.value.revoked.is_some()) {
                self.leave_old_place(&current.value.resource, entry);
                leaves = true;
            }
        }
        Ok(leaves)
    }
}
