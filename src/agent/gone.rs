//! Grants that somebody took away, as their agent finds out, and what their apps are told of it.
//!
//! A lease whose grant the store no longer names is over in the step that shows it: from then on nobody
//! is told yes. Why it is over the lock's own record may say. Where the lock was not seen, it is read for
//! that, and a loss is told when it was, a second later at most; what cannot be found out is told as
//! `grant_gone`. It does not ask whether taking the grant was right.

use std::time::Duration;

use tokio::sync::watch;

use crate::protocol::ids::{GrantId, LeaseId, Resource};
use crate::protocol::incident::{Incident, IncidentKind};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::token::Token;
use crate::store::{StoreError, Stored};

use super::core::effect::Input;
use super::core::stream::Over;
use super::release::{Ending, GivenBack};
use super::state::{End, Held};
use super::{Agent, Backoff, LeaseError};

/// For how long it is looked up at most why a lease is over, before that is told.
const LOOKED_UP_WITHIN: Duration = Duration::from_secs(1);

/// What is known of a lock that no longer names a grant.
pub(super) enum Found<'a> {
    /// As it was read since; none when there is no such lock.
    Read(Option<&'a Lock>),
    /// It was only told that the grant is gone.
    Unread,
}

/// A grant, as a record may name it.
pub(super) struct Gone {
    pub(super) grant: GrantId,
    /// Its first token.
    pub(super) base: Token,
}

/// A lease that is over while it is looked up why. It is known from then on, whatever becomes of the
/// task that looks.
struct Unexplained {
    agent: Agent,
    lease: LeaseId,
}

impl Drop for Unexplained {
    fn drop(&mut self) {
        self.agent.state().unexplained.remove(&self.lease);
        self.agent.0.something_ended.notify_waiters();
    }
}

impl Gone {
    pub(super) fn from(held: &Held) -> Self {
        Self {
            grant: held.tenure.grant().clone(),
            base: held.stored.value.token,
        }
    }

    fn record<'a>(&self, lock: Option<&'a Lock>) -> Option<&'a Incident> {
        lock?.incident_of(&self.grant, self.base)
    }

    fn loss(&self, lock: Option<&Lock>) -> Loss {
        match self.record(lock).map(|record| record.kind) {
            Some(IncidentKind::ForceReleased) => Loss::ForceReleased,
            // Nobody takes over before the session is revoked, or was missing for long.
            Some(IncidentKind::Expired | IncidentKind::PodEnded) => Loss::SessionRevoked,
            Some(IncidentKind::ReleasedOnRequest) | None => Loss::GrantGone,
        }
    }
}

impl Agent {
    /// Ends a lease whose grant the store no longer names.
    pub(super) fn lose_gone(&self, lease: &LeaseId, found: &Found<'_>) {
        let now = self.now();
        let (resource, mut held, gone, over) = {
            let mut state = self.state();
            let Some(held) = state.held_mut(lease) else {
                return;
            };
            let gone = Gone::from(held);
            let (loss, over) = match found {
                Found::Read(lock) => (gone.loss(*lock), None),
                Found::Unread => {
                    // Its streams are told when it is known.
                    let over = held.over.take();
                    state.unexplained.insert(lease.clone());
                    (Loss::GrantGone, over)
                }
            };
            let Some((resource, held)) = state.end(lease, End::Lost(loss), now) else {
                return;
            };
            (resource, held, gone, over)
        };
        if let Found::Read(lock) = found {
            let loss = self.report_taken(lease, &gone, *lock);
            if loss == Loss::SessionRevoked {
                // Whatever is acquired with it meanwhile would be lost again.
                self.feed(Input::RenewNow(held.session.id.clone()));
            }
            return self.after_loss(Some((resource, held.ended(), Some(held))), loss, now);
        }
        self.0.something_ended.notify_waiters();
        let unexplained = Unexplained {
            agent: self.clone(),
            lease: lease.clone(),
        };
        let on_its_way = self.on_its_way(gone.grant.clone());
        self.spawn(async move {
            let Unexplained { agent, lease } = &unexplained;
            let read = agent.look_up(&resource).await;
            let loss = agent.report_taken(lease, &gone, read.as_ref().map(|read| &read.value));
            agent.state().explain_loss(lease, loss, over.as_ref());
            if let Some(read) = read {
                // Nothing is left to be given back, and that needs no other read.
                held.stored = read;
            }
            drop(on_its_way);
            let session = held.session.id.clone();
            agent.after_loss(Some((resource, held.ended(), Some(held))), loss, now);
            if loss == Loss::SessionRevoked {
                agent.feed(Input::RenewNow(session));
            }
        });
    }

    /// The lock as it is now; none when there is none, or that cannot be found out in time.
    async fn look_up(&self, resource: &Resource) -> Option<Stored<Lock>> {
        let look = async {
            let mut backoff = Backoff::of_a_call(self.now());
            loop {
                match self.read_lock(resource).await {
                    Ok(read) => return read,
                    Err(StoreError::Collision { .. }) => return None,
                    Err(error) if !error.is_transient() => return None,
                    Err(_) if self.pause(&mut backoff).await => {}
                    Err(_) => return None,
                }
            }
        };
        let in_time = tokio::time::timeout(LOOKED_UP_WITHIN, look).await;
        in_time.ok().flatten()
    }

    /// Says why a lease is over whose grant is gone, and reports it: what a person did on the record is
    /// no alarm.
    fn report_taken(&self, lease: &LeaseId, gone: &Gone, lock: Option<&Lock>) -> Loss {
        let loss = gone.loss(lock);
        // People's words are escaped: they may have line breaks in them.
        let said = gone
            .record(lock)
            .map(|record| (&record.actor, &record.reason));
        let (actor, reason) = said.unzip();
        match loss {
            Loss::ForceReleased => tracing::warn!(
                leaseId = %lease, ?actor, ?reason, "grant ended by force release"
            ),
            Loss::SessionRevoked => {
                // Its app could still believe in it.
                self.0.metrics.dual_owner_suspected();
                tracing::error!(
                    leaseId = %lease, ?actor, ?reason,
                    "session revoked and lock reassigned"
                );
            }
            _ => self.report_gone(lease),
        }
        loss
    }

    /// The store no longer names the grant of a lease that its app may believe in.
    fn report_gone(&self, lease: &LeaseId) {
        self.0.metrics.dual_owner_suspected();
        tracing::error!(
            leaseId = %lease, advice = "check whether the lock was deleted or edited",
            "lock no longer names the lease's grant"
        );
    }

    /// Why a lease is over, as it may be told: where that is being looked up, when it is known.
    pub async fn explained(&self, lease: &LeaseId, error: LeaseError) -> LeaseError {
        loop {
            let ended = self.0.something_ended.notified();
            {
                let state = self.state();
                if error != LeaseError::Lost(Loss::GrantGone) || !state.unexplained.contains(lease)
                {
                    return match (error, state.core.history.end(lease)) {
                        (LeaseError::Lost(Loss::GrantGone), Some(End::Lost(loss))) => {
                            LeaseError::Lost(loss)
                        }
                        _ => error,
                    };
                }
            }
            ended.await;
        }
    }

    /// Remembers how a lease ended. One whose grant was gone before its app ended it was lost,
    /// unless its session may have run out since: then others took over rightly.
    pub(super) fn note_given_back(&self, ending: &Ending, given_back: &GivenBack) {
        let lock = match given_back {
            GivenBack::Abandoned => return,
            GivenBack::WasGone(lock)
                if self.nobody_else_may_hold(ending) || ending.was_forced(lock.as_deref()) =>
            {
                lock.as_deref()
            }
            GivenBack::Done | GivenBack::WasGone(_) => {
                return self
                    .state()
                    .core
                    .history
                    .release_ended(&ending.lease, End::Released);
            }
        };
        let loss = match lock {
            // An object that is older than what was written to it came out of a backup.
            Some(lock) if lock.version < ending.seen_at => {
                self.report_gone(&ending.lease);
                Loss::StoreRestored
            }
            lock => self.report_taken(&ending.lease, &ending.gone, lock.map(|lock| &lock.value)),
        };
        self.0.metrics.lease_lost(loss.as_str());
        self.state()
            .core
            .history
            .release_ended(&ending.lease, End::Lost(loss));
    }

    /// Whether nobody can have taken over from a lease that its app ended: what the app was told,
    /// or the session, has not run out yet.
    fn nobody_else_may_hold(&self, ending: &Ending) -> bool {
        let now = self.now();
        let session_until = self.session_deadline(&ending.session);
        now < ending.told_until || session_until.is_some_and(|until| now < until)
    }
}

impl Ending {
    fn was_forced(&self, lock: Option<&Stored<Lock>>) -> bool {
        let lock = lock.map(|lock| &lock.value);
        self.gone.loss(lock) == Loss::ForceReleased
    }
}

impl super::state::State {
    /// It is known why a lease is over: everybody is told that from here on.
    fn explain_loss(
        &mut self,
        lease: &LeaseId,
        loss: Loss,
        over: Option<&watch::Sender<Option<Over>>>,
    ) {
        self.unexplained.remove(lease);
        self.core.history.correct_end(lease, End::Lost(loss));
        if let Some(over) = over {
            over.send_replace(Some(Over::Lost(loss)));
        }
    }
}
