//! Waiting for a lock, as a caller sees it: a place in line, then the answer or the end of its
//! time. Each line is served by a task of its own, in `pursuit`; nothing here asks the store.

use tokio::sync::oneshot;

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::time::Moment;
use crate::store::StoreError;

use super::acquire::Delivery;
use super::core::history::RequestKey;
use super::line::{Joined, Ticket};
use super::{AcquireError, AcquireRequest, Acquired, Agent};

/// A caller's place in line, for as long as it waits. Dropping it is going away.
struct Standing {
    agent: Agent,
    request: AcquireRequest,
    arrived: Moment,
    ticket: Ticket,
}

impl Drop for Standing {
    fn drop(&mut self) {
        let now = self.agent.now();
        let has_left = {
            let mut state = self.agent.state();
            state.idle_since = now;
            state.leave_line(&self.request.resource, self.ticket, now)
        };
        if has_left {
            let waited = now.since(self.arrived);
            self.agent.0.metrics.waited("hung_up", waited);
            tracing::info!(
                resource = %self.request.resource, ownerId = %self.request.owner,
                waitedMs = waited.as_millis(), "waiting caller disconnected"
            );
        }
        // A repetition of its request may take its place now.
        self.agent.0.something_ended.notify_waiters();
    }
}

impl Agent {
    /// Waits in line for a lock, as long as the request says.
    pub(super) async fn acquire_in_line(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<Acquired, AcquireError> {
        let until = arrived.after(request.wait);
        // EarlierPromise in this order: going away is to be noted before the receiver is dropped.
        let (mut delivered, standing) = loop {
            let ended = self.0.something_ended.notified();
            if let Some(answer) = self.answer_repeated(request, arrived)? {
                return Ok(answer);
            }
            if let Some(joined) = self.stand_in_line(request, arrived)? {
                break joined;
            }
            if self.now() >= until {
                return self.last_of(&request.resource);
            }
            // The same request is under way; its answer will be this one's too.
            tokio::select! {
                biased;
                () = ended => {}
                () = self.sleep_until(until) => {}
            }
        };
        let delivery = loop {
            tokio::select! {
                // What came in the last moment is had.
                biased;
                delivery = &mut delivered => break delivery.ok(),
                () = self.sleep_until(until) => {
                    // Timers only wake.
                    if self.now() >= until && let Some(answer) = self.give_up(&standing) {
                        return answer;
                    }
                }
            }
        };
        let outcome = delivery.and_then(|mut delivery| delivery.take());
        outcome.unwrap_or_else(|| {
            Err(AcquireError::Store(StoreError::Ambiguous(
                "the wait was cut off".into(),
            )))
        })
    }

    /// A place in line; none while the same request is under way.
    fn stand_in_line(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<Option<(oneshot::Receiver<Delivery>, Standing)>, AcquireError> {
        let joined = {
            let mut state = self.state();
            if state.is_draining() {
                return Err(AcquireError::ShuttingDown);
            }
            if RequestKey::of(request).is_some_and(|key| state.asked.contains(&key)) {
                return Ok(None);
            }
            if !state.has_place(request)? {
                state.check_room(&self.0.config)?;
            }
            state.join_line(request, arrived)
        };
        let Joined::InLine {
            ticket,
            delivered,
            is_new_line,
        } = joined
        else {
            return Ok(None);
        };
        if is_new_line {
            let (agent, resource) = (self.clone(), request.resource.clone());
            self.spawn_supervised("a line", move || agent.clone().serve_line(resource.clone()));
        }
        let standing = Standing {
            agent: self.clone(),
            request: request.clone(),
            arrived,
            ticket,
        };
        Ok(Some((delivered, standing)))
    }

    /// The caller's time is up. None when its answer is on its way already.
    fn give_up(&self, standing: &Standing) -> Option<Result<Acquired, AcquireError>> {
        self.state()
            .take_caller(&standing.request.resource, standing.ticket)?;
        Some(self.last_of(&standing.request.resource))
    }

    /// What a line knows of its lock, for a caller whose time is up.
    pub(super) fn last_of(&self, resource: &Resource) -> Result<Acquired, AcquireError> {
        let state = self.state();
        let last = state.lines.get(resource).and_then(|line| line.last.clone());
        last.unwrap_or_else(|| {
            Err(AcquireError::Store(StoreError::Unavailable(
                "nothing is known of the lock yet".into(),
            )))
        })
    }

    /// Releases a lease that its caller went away from, once the time for a repetition of the
    /// request is over, unless it was repeated.
    pub(super) fn release_unless_repeated(&self, lease: LeaseId, until: Moment) {
        let agent = self.clone();
        self.spawn(async move {
            while agent.now() < until && !agent.0.stop.is_cancelled() {
                tokio::select! {
                    biased;
                    () = agent.0.stop.cancelled() => {}
                    () = agent.sleep_until(until) => {}
                }
            }
            agent.release_undelivered(&lease);
        });
    }
}
