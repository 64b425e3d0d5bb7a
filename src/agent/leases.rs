//! What an app asks about its lease: answered from memory, in microseconds, without a write.
//!
//! Every answer binds the agent: it is recorded in the lease before it is given.

use std::time::Duration;

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::lease::{Lease, Loss, Told};
use crate::protocol::time::{Moment, WallTime};

use super::state::{End, Held};
use super::types::Span;
use super::{Agent, LeaseError, LeaseView, Life};

impl Agent {
    /// Renews a lease: the app lives, and is told how long it may go on. With `ttl` the app's own
    /// TTL changes; one that a connection holds has none. While the agent is stopping, no deadline moves any more.
    ///
    /// # Errors
    /// [`LeaseError`] when the lease is unknown, released or lost.
    pub fn renew(
        &self,
        lease: &LeaseId,
        ttl: Option<Duration>,
        arrived: Moment,
    ) -> Result<LeaseView, LeaseError> {
        let mut is_changed = false;
        let view = self.tell(lease, arrived, |held, now, deadline| {
            let ttl = match held.life {
                Life::Ttl(before) => {
                    is_changed = ttl.is_some_and(|ttl| ttl != before);
                    ttl.unwrap_or(before)
                }
                // It has none, and needs no renewing; the app is told what it has.
                Life::Connection { .. } | Life::Campaign => {
                    return held.lease.tell_again(arrived, now, deadline);
                }
            };
            held.life = Life::Ttl(ttl);
            held.lease.tell(arrived, now, ttl, deadline)
        })?;
        if is_changed {
            self.state().write_ttl(lease);
        }
        self.wake_sweeper_for(lease);
        Ok(view)
    }

    /// The answer to a repeated request: the same lease, and from here on somebody believes in it.
    pub(super) fn replay(&self, lease: &LeaseId, arrived: Moment) -> Result<LeaseView, LeaseError> {
        self.tell(lease, arrived, |held, now, deadline| {
            held.replayed = true;
            match held.life {
                Life::Ttl(ttl) => held.lease.tell(arrived, now, ttl, deadline),
                Life::Connection { .. } | Life::Campaign => {
                    held.lease.tell_again(arrived, now, deadline)
                }
            }
        })
    }

    /// What a lease has left. Asking is no sign of the app's life.
    ///
    /// # Errors
    /// [`LeaseError`] when the lease is unknown, released or lost.
    pub fn lease(&self, lease: &LeaseId, arrived: Moment) -> Result<LeaseView, LeaseError> {
        self.tell(lease, arrived, |held, now, deadline| {
            held.lease.tell_again(arrived, now, deadline)
        })
    }

    fn tell(
        &self,
        lease: &LeaseId,
        arrived: Moment,
        ask: impl FnOnce(&mut Held, Moment, Moment) -> Result<Told, Loss>,
    ) -> Result<LeaseView, LeaseError> {
        self.end_if_lost(lease);
        let mut state = self.state();
        match state.core.history.end(lease) {
            Some(End::Released | End::Releasing) => return Err(LeaseError::Released),
            Some(End::Lost(loss)) => return Err(LeaseError::Lost(loss)),
            None => {}
        }
        // Read under the mutex: whoever judges the same lease does so before this or after.
        let now = self.now();
        let draining = state.is_draining();
        let resource = state.resource_of.get(lease).cloned();
        let resource = resource.ok_or_else(|| state.unserved(lease))?;
        let session = state
            .held
            .get(&resource)
            .map(|held| held.session.id.clone());
        let deadline = session.and_then(|session| state.deadline_of(&session));
        let deadline = deadline.ok_or(LeaseError::Lost(Loss::SessionExpired))?;
        let held = state.held.get_mut(&resource).ok_or(LeaseError::Unknown)?;
        if held.is_closing {
            return Err(LeaseError::Released);
        }
        let told = if draining {
            held.lease.last_told(arrived, now)
        } else {
            ask(held, now, deadline)
        };
        let told = told.map_err(LeaseError::Lost)?;
        if held.life == Life::Campaign {
            // Whichever call an app learns of the lead by, it acts on that.
            held.readers_until = held.readers_until.max(told.until);
        }
        Ok(self.view(&resource, held, told, Span { arrived, now }))
    }

    /// A lease as its app sees it.
    pub(super) fn view(
        &self,
        resource: &Resource,
        held: &Held,
        told: Told,
        span: Span,
    ) -> LeaseView {
        let Lease { id, token, .. } = &held.lease;
        LeaseView {
            resource: resource.clone(),
            owner: held.owner.clone(),
            lease: id.clone(),
            token: *token,
            valid_for: told.valid_for,
            expires_at: wall_after(self.0.clock.wall(), told.until.since(span.now)),
            renew_after: span.now.since(span.arrived) + told.until.since(span.now) / 3,
            asked: held.asked().cloned(),
        }
    }
}

fn wall_after(wall: WallTime, wait: Duration) -> WallTime {
    WallTime(
        wall.0
            .saturating_add(i64::try_from(wait.as_micros()).unwrap_or(i64::MAX)),
    )
}
