//! What happens to leases when the agent stops.

use std::time::Duration;

use crate::protocol::ids::LeaseId;

use super::core::effect::Input;
use super::core::leases::EndedBy;
use super::{Agent, CALL_LIMIT, OnTerm};

/// How long a stopping agent waits for the store to take its releases.
const LAST_WORDS: Duration = Duration::from_secs(3);

impl Agent {
    /// Waits until every lease was released or the deadline that its app was told has passed.
    pub(super) async fn wait_for_leases_to_end(&self) {
        loop {
            let ended = self.0.something_ended.notified();
            let told = {
                let state = self.state();
                let held = state.core.own.leases();
                let told = held.map(|held| held.lease.told_until());
                told.chain([state.core.promised_until()]).max()
            };
            let Some(told) = told.filter(|told| self.now() < *told) else {
                return;
            };
            tokio::select! {
                biased;
                () = ended => {}
                () = self.sleep_until(told) => {}
            }
        }
    }

    /// Releases what is still held, but for promised leases where those are left, and waits (a few
    /// seconds at most) for the store to confirm that, and for the attempts in flight to end. All releases
    /// are started before any is waited for: the kubelet does not wait for them one after the other.
    pub(super) async fn release_at_the_end(&self, on_term: OnTerm) {
        let leaves_promised = on_term == OnTerm::ReleaseNow;
        let until = self.now().after(LAST_WORDS);
        loop {
            let ended = self.0.something_ended.notified();
            let leases: Vec<LeaseId> = {
                let state = self.state();
                let leases = state.core.own.leases();
                leases.map(|held| held.lease.id.clone()).collect()
            };
            for lease in &leases {
                // What waits for it waits for the agent's load to fall.
                let _ended = self.end(lease, EndedBy::Agent { leaves_promised });
            }
            let (load, left) = {
                let state = self.state();
                (state.core.load(), state.core.left_at_stop())
            };
            if load == 0 || (leaves_promised && load == left) {
                return;
            }
            tokio::select! {
                // The bound first: it holds also where something ends all the time.
                biased;
                () = self.sleep_until(until) => return,
                () = ended => {}
            }
        }
    }

    /// Leaves promised leases to their session and to the file: nothing that happens from here on ends one,
    /// least of all the connections that the end of this process closes. False when there are none.
    pub(super) fn leave_promised(&self) -> bool {
        {
            let mut state = self.state();
            // An unfinished resumption may still bring leases: they are on file, and stay there.
            state.has_left = state.core.left_at_stop() > 0 || state.core.is_resuming();
            if !state.has_left {
                return false;
            }
            tracing::info!(
                leases = state.core.own.len(),
                "leaving leases to the next process"
            );
            state.elections.wake_streams();
        }
        self.0.streams_changed.notify_waiters();
        true
    }

    /// Stops everything, but no renewal in flight: the next process can resume the session only at the
    /// version that is on file.
    pub(super) async fn stop_renewing(&self) {
        // A bound for the worst case: without the renewal's answer the next process resumes nothing.
        let stopped = self.request(Input::StopRenewing);
        let _in_time = tokio::time::timeout(CALL_LIMIT, stopped).await;
        self.0.stop.cancel();
    }
}
