//! The sweeper, which ends the leases of silent apps and lets the core do what is due, and the end of
//! all leases when the agent stops.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::time::Moment;

use super::bid::Bid;
use super::core::effect::{Input, Reply};
use super::{Agent, CALL_LIMIT, OnTerm};

/// How long a stopping agent waits for the store to take its releases.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// A task that died is not started again faster than this.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// How long the sweeper sleeps when there is nothing to sweep.
const NOTHING_TO_SWEEP: Duration = Duration::from_secs(3_600);

impl Agent {
    /// Ends the leases of apps that stay silent. It only wakes; `end_if_lost` asks the clock.
    pub(super) fn spawn_sweeper(&self) {
        let agent = self.clone();
        self.spawn_supervised("the sweeper", move || agent.clone().sweep_on());
    }

    async fn sweep_on(self) {
        while !self.0.stop.is_cancelled() {
            self.feed(Input::Timer);
            {
                let mut state = self.state();
                // Whatever comes while this looks is to wake it again: it may have missed it.
                state.next_sweep = Moment::since_boot(Duration::MAX);
                state.next_timer = Moment::default();
            }
            let due = self.sweep();
            let next = {
                let mut state = self.state();
                let due = due.into_iter();
                let due = due.chain(state.core.poll_timeout(state.is_idle())).min();
                let next = due.unwrap_or_else(|| self.now().after(NOTHING_TO_SWEEP));
                (state.next_sweep, state.next_timer) = (next, next);
                next
            };
            tokio::select! {
                biased;
                () = self.0.stop.cancelled() => {}
                () = self.0.deadlines_changed.notified() => {}
                () = self.sleep_until(next) => {}
            }
        }
    }

    /// Runs a task that must not die silently: if it panics, it is started again.
    pub(super) fn spawn_supervised<F>(
        &self,
        name: &'static str,
        task: impl Fn() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let agent = self.clone();
        self.spawn(async move {
            while let Err(error) = agent.spawn_joined(task()).await {
                tracing::error!(%error, task = name, "task failed; restarting");
                tokio::time::sleep(RESTART_PAUSE).await;
            }
        });
    }

    /// Wakes the sweeper, if this lease may run out before it wakes by itself.
    pub(super) fn wake_sweeper_for(&self, lease: &LeaseId) {
        let mut state = self.state();
        let next_sweep = state.next_sweep;
        let sooner = state
            .held_mut(lease)
            .is_some_and(|held| held.lease.gives_up_at() < next_sweep);
        if sooner {
            self.0.deadlines_changed.notify_one();
        }
    }

    /// Wakes the sweeper, if this kept grant is to go before it wakes by itself.
    pub(super) fn wake_sweeper_for_kept(&self, resource: &Resource) {
        if self.state().is_kept_due_before_sweep(resource) {
            self.0.deadlines_changed.notify_one();
        }
    }

    /// Ends every lease that the clock has ended, and gives back what was kept for long enough;
    /// says when the next one is due.
    pub(super) fn sweep(&self) -> Option<Moment> {
        let kept = self.sweep_kept();
        let (due, next): (Vec<LeaseId>, _) = {
            let state = self.state();
            let now = self.now();
            let held = state.held.values();
            let (due, left): (Vec<_>, Vec<_>) =
                held.partition(|held| state.loss_of(held, now).is_some());
            let next = left.iter().map(|held| held.lease.gives_up_at()).min();
            (due.iter().map(|held| held.lease.id.clone()).collect(), next)
        };
        for lease in &due {
            self.end_if_lost(lease);
        }
        next.into_iter().chain(kept).min()
    }

    fn sweep_kept(&self) -> Option<Moment> {
        let (due, next): (Vec<Resource>, _) = {
            let state = self.state();
            let now = self.now();
            let (due, left): (Vec<_>, Vec<_>) = state
                .kept
                .iter()
                .partition(|(_, kept)| now >= kept.goes_at());
            let next = left.iter().map(|(_, kept)| kept.goes_at()).min();
            (
                due.iter()
                    .map(|(resource, _)| (*resource).clone())
                    .collect(),
                next,
            )
        };
        for resource in &due {
            self.give_back_kept(resource);
        }
        next
    }

    /// Clears from the store what it may have for a bid that is given up. One that sent nothing has nothing
    /// there.
    pub(super) fn settle_bid(&self, bid: &Bid) -> Option<oneshot::Receiver<Reply>> {
        let grant = bid.key().filter(|_| bid.is_sent)?;
        let resource = bid.request.resource.clone();
        Some(self.clear_leftover(resource, grant, bid.uncertain))
    }

    /// Waits until every lease was released or the deadline that its app was told has passed.
    pub(super) async fn wait_for_leases_to_end(&self) {
        loop {
            let ended = self.0.something_ended.notified();
            let told = {
                let state = self.state();
                let held = state.held.values();
                let told = held.map(|held| held.lease.told_until());
                told.chain([state.promised_until]).max()
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
            let leases: Vec<LeaseId> = self.state().resource_of.keys().cloned().collect();
            for lease in &leases {
                self.release_at_stop(lease, leaves_promised);
            }
            let (load, left) = {
                let state = self.state();
                (state.load(), state.left_at_stop())
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
            state.has_left = state.left_at_stop() > 0 || state.resuming.is_some();
            if !state.has_left {
                return false;
            }
            tracing::info!(
                leases = state.lease_count(),
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
