//! What goes on behind the callers' backs: leases of silent apps are ended, writes of unknown
//! outcome are looked up, and a lost session's leftovers are cleared from the store.
//!
//! None of it is needed for safety. It makes locks free sooner than their deadlines would.

use std::time::Duration;

use tokio::sync::oneshot;

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::key::GrantKey;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::store::{Stored, within};

use super::bid::{Bid, Unsettled};
use super::core::effect::Input;
use super::release::Returning;
use super::{Agent, Backoff, CALL_LIMIT, OnTerm};

/// How long a write may still land after nobody waits for it: the API server ends a request
/// after 60 s, and a proxy on the way may hold it as long again.
const LANDS_WITHIN: Duration = Duration::from_secs(120);
/// How long a lost session's leftovers are worth the trouble; by then others have taken over.
pub(super) const CLEARED_WITHIN: Duration = Duration::from_secs(600);
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
            // Whatever comes while this looks is to wake it again: it may have missed it.
            self.state().next_sweep = Moment::since_boot(Duration::MAX);
            let due = self.sweep();
            let next = {
                let mut state = self.state();
                let due = due.into_iter();
                let due = due.chain(state.core.poll_timeout(state.is_idle())).min();
                state.next_sweep = due.unwrap_or_else(|| self.now().after(NOTHING_TO_SWEEP));
                state.next_sweep
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
        let state = self.state();
        let kept = state.kept.get(resource);
        if kept.is_some_and(|kept| kept.goes_at() < state.next_sweep) {
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

    /// Finds out what the store holds for a grant that nobody awaits any more, and clears it: the
    /// grant is released, a place in the queue given up. While a write of unknown outcome may still
    /// land, it goes on looking. The receiver hears when it is done.
    pub(super) fn spawn_settle(
        &self,
        resource: Resource,
        grant: GrantKey,
        unsettled: Option<Unsettled>,
    ) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        let agent = self.clone();
        let on_its_way = self.on_its_way(grant.id.clone());
        self.spawn(async move {
            agent.settle(resource, grant, unsettled).await;
            drop(on_its_way);
            // Nobody may be waiting any more.
            let _unheard = done.send(());
        });
        receiver
    }

    /// The same for a bid that is given up. One that sent nothing has nothing to be cleared.
    pub(super) fn settle_bid(&self, bid: &Bid) -> Option<oneshot::Receiver<()>> {
        let grant = bid.key().filter(|_| bid.is_sent)?;
        let resource = bid.request.resource.clone();
        Some(self.spawn_settle(resource, grant, bid.unsettled))
    }

    async fn settle(&self, resource: Resource, grant: GrantKey, unsettled: Option<Unsettled>) {
        let mut backoff = Backoff::until(self.now().after(LANDS_WITHIN));
        loop {
            match self.read_lock(&resource).await {
                Ok(Some(found)) if found.value.is_held_by(&grant) => {
                    tracing::info!(%resource, grantId = %grant.id, "grant has no caller; releasing");
                    let known = Some(found);
                    let what = Returning {
                        resource,
                        grant,
                        known,
                        asked: None,
                        lease: None,
                        may_have_landed: false,
                    };
                    self.give_back(what, Backoff::endless()).await;
                    return;
                }
                Ok(Some(found)) => {
                    let is_settled = match found.value.leave_queue(&grant) {
                        // The place may be the later join's, and the first still on its way.
                        Some(next) => {
                            let has_left = self.write_left_queue(&found, &next).await;
                            has_left && unsettled != Some(Unsettled::Join { again: true })
                        }
                        None => match unsettled {
                            None => true,
                            Some(Unsettled::Swap(on)) => found.version != on,
                            Some(Unsettled::Join { .. }) => false,
                        },
                    };
                    if is_settled {
                        return;
                    }
                }
                Ok(None) => return,
                Err(_) => {}
            }
            if !self.pause(&mut backoff).await {
                return;
            }
        }
    }

    /// One try to leave the queue. Any answer but yes is looked up by the next round.
    async fn write_left_queue(&self, current: &Stored<Lock>, next: &Lock) -> bool {
        // Closes the race with a hand-over to us: what is left is the queue that was read.
        match within(CALL_LIMIT, self.0.locks.update(current, next)).await {
            Ok(stored) => {
                self.observe_revision(stored.version);
                true
            }
            Err(error) => {
                tracing::debug!(resource = %current.value.resource, %error, "leaving the queue failed; retrying");
                false
            }
        }
    }

    /// Gives the grants of a lost session back once no app may believe in them any more.
    pub(super) fn spawn_give_back_lost(&self, grants: Vec<Returning>, not_before: Moment) {
        let agent = self.clone();
        self.spawn(async move {
            // Timers only wake; a clock that counts sleep may be ahead of them or behind.
            while agent.now() < not_before {
                agent.sleep_until(not_before).await;
            }
            let give_up = agent.now().after(CLEARED_WITHIN);
            for what in grants {
                agent.give_back(what, Backoff::until(give_up)).await;
            }
        });
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
