//! Giving a grant back. The lease is over the moment its app says so; the store hears of it as
//! soon as it can.
//!
//! Once a release was sent, the grant is never used again: the agent only goes on releasing,
//! because the first try may still land. Invariant: whoever takes a lease out of the state starts
//! the release of its grant.

use crate::protocol::ids::{GrantId, LeaseId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::store::{StoreError, Stored, within};

use super::state::{End, Held};
use super::{Agent, Backoff, CALL_LIMIT, LeaseError, Released};

/// How long the app waits for the store before it is told `Pending`.
const ANSWER_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);

/// What is to be given back.
pub(super) struct Returning {
    pub(super) resource: Resource,
    pub(super) grant: GrantId,
    /// The lock as last seen, if it is worth a try without reading.
    pub(super) known: Option<Stored<Lock>>,
    /// The lease whose end this completes.
    pub(super) lease: Option<LeaseId>,
}

/// Keeps the session alive until the grant is given back.
struct InTheWay(Agent);

impl Drop for InTheWay {
    fn drop(&mut self) {
        self.0.state().releasing -= 1;
        self.0.0.something_ended.notify_waiters();
    }
}

impl Agent {
    /// Ends a lease at its app's word.
    ///
    /// # Errors
    /// [`LeaseError`] when the lease is unknown or was lost before. Releasing twice is no error.
    pub async fn release(&self, lease: &LeaseId) -> Result<Released, LeaseError> {
        let now = self.now();
        self.end_if_lost(lease, now);
        let taken = {
            let mut state = self.state();
            match state.ended(lease) {
                Some(End::Released) => return Ok(Released::Done),
                Some(End::Releasing) => return Ok(Released::Pending),
                Some(End::Lost(loss)) => return Err(LeaseError::Lost(loss)),
                None => state.end(lease, End::Releasing, now),
            }
        };
        let (resource, mut held) = taken.ok_or(LeaseError::Unknown)?;
        held.tenure.release_sent();
        self.0.metrics.lease_ended(now.since(held.since));
        tracing::info!(
            resource = %resource, ownerId = %held.owner, leaseId = %lease,
            fencingToken = held.lease.token.get(), "lease released"
        );
        let done = self.spawn_give_back(Returning {
            resource,
            grant: held.tenure.grant().clone(),
            known: Some(held.stored),
            lease: Some(lease.clone()),
        });
        match tokio::time::timeout(ANSWER_LIMIT, done).await {
            Ok(Ok(())) => Ok(Released::Done),
            _ => Ok(Released::Pending),
        }
    }

    /// Starts giving a grant back, in a task that no caller can cut off. The receiver hears when
    /// the store says that the lock is no longer ours.
    pub(super) fn spawn_give_back(&self, what: Returning) -> tokio::sync::oneshot::Receiver<()> {
        let (done, receiver) = tokio::sync::oneshot::channel();
        self.state().releasing += 1;
        let in_the_way = InTheWay(self.clone());
        self.spawn(async move {
            let agent = in_the_way.0.clone();
            let lease = what.lease.clone();
            if agent.give_back(what, Backoff::endless()).await {
                if let Some(lease) = lease {
                    agent.state().release_done(&lease);
                }
                // Nobody may be waiting any more.
                let _unheard = done.send(());
            }
            drop(in_the_way);
        });
        receiver
    }

    /// Tries until the lock no longer names the grant; false when the tries are used up.
    pub(super) async fn give_back(&self, mut what: Returning, mut backoff: Backoff) -> bool {
        loop {
            match self.try_give_back(&mut what).await {
                Ok(true) => {
                    self.0.metrics.release("released");
                    return true;
                }
                // Another write came first: the next round reads.
                Ok(false) => {}
                Err(error) => {
                    self.0.metrics.release("retried");
                    tracing::warn!(resource = %what.resource, %error, "release not written yet; trying on");
                }
            }
            if !self.pause(&mut backoff).await {
                self.0.metrics.release("abandoned");
                return false;
            }
        }
    }

    async fn try_give_back(&self, what: &mut Returning) -> Result<bool, StoreError> {
        let current = match what.known.take() {
            Some(known) => known,
            None => match self.read_lock(&what.resource).await? {
                Some(found) => found,
                None => return Ok(true),
            },
        };
        let Some(mint) = self.mint() else {
            return Ok(true);
        };
        let wall = self.0.clock.wall();
        let Some(next) = current
            .value
            .release(current.version, &mint, &what.grant, wall)
        else {
            return Ok(true);
        };
        // Closes the race with a waiter that joins the queue while the lock is let go: the
        // release then reads again and hands over instead.
        match within(CALL_LIMIT, self.0.locks.update(&current, &next)).await {
            Ok(stored) => {
                self.state().note_lock(&stored);
                Ok(true)
            }
            Err(StoreError::Conflict) => Ok(false),
            Err(StoreError::NotFound(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// A lease that the clock has ended is taken out, reported and given back.
    pub(super) fn end_if_lost(&self, lease: &LeaseId, now: Moment) {
        let (session, loss) = {
            let mut state = self.state();
            let Some(held) = state.held_mut(lease) else {
                return;
            };
            let session = held.session.clone();
            let Some(live) = state.session.as_ref().filter(|live| *live.id() == session) else {
                return;
            };
            let deadline = live.keep_alive.valid_until();
            let Some(held) = state.held_mut(lease) else {
                return;
            };
            let Some(loss) = held.lease.lost(now, deadline) else {
                return;
            };
            (session, loss)
        };
        match loss {
            // With the session everything goes.
            Loss::SessionExpired | Loss::SessionRevoked => self.lose_session(&session, loss),
            Loss::GrantGone | Loss::AppSilent | Loss::AgentStopping => {
                self.lose_lease(lease, loss, now);
            }
        }
    }

    /// Ends one lease whose app may no longer believe in it, and gives its grant back.
    fn lose_lease(&self, lease: &LeaseId, loss: Loss, now: Moment) {
        let Some((resource, mut held)) = self.state().end(lease, End::Lost(loss), now) else {
            return;
        };
        self.report_lost(&resource, &held, loss, now);
        held.tenure.release_sent();
        let grant = held.tenure.grant().clone();
        let known = Some(held.stored);
        // Nobody waits for it; the task goes on by itself.
        let _done = self.spawn_give_back(Returning {
            resource,
            grant,
            known,
            lease: None,
        });
    }

    /// One log line and the counters for a lease that its app did not end.
    pub(super) fn report_lost(&self, resource: &Resource, held: &Held, loss: Loss, now: Moment) {
        self.0.metrics.lease_lost(loss.as_str());
        self.0.metrics.lease_ended(now.since(held.since));
        tracing::warn!(
            %resource, ownerId = %held.owner, leaseId = %held.lease.id,
            fencingToken = held.lease.token.get(), reason = loss.as_str(), "lease lost"
        );
    }
}
