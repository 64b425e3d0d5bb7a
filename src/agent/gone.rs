//! Leases whose grants were ended by somebody else, and the reason that their apps get.
//!
//! Such a lease is over in the step that shows that its grant is gone. The lock's incident may have the
//! reason. If the lock itself was not read yet, the core reads it. Whether it was right to end the grant
//! does not matter here.

use tokio::sync::watch;

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::store::Stored;

use super::core::effect::Input;
use super::core::stream::Over;
use super::driver::Deferred;
use super::state::{End, Held, State};
use super::{Agent, LeaseError};

/// What is known of a lock that no longer names a grant.
pub(super) enum Found<'a> {
    /// As it was read since; none when there is no such lock.
    Read(Option<&'a Lock>),
    /// It was only told that the grant is gone.
    Unread,
}

/// A lease that is over while the core finds out why. Its end is not reported before.
pub(super) struct Unexplained {
    resource: Resource,
    held: Held,
    /// Its streams, which end with the reason.
    over: Option<watch::Sender<Option<Over>>>,
}

impl Agent {
    /// Ends a lease whose grant the store no longer names.
    pub(super) fn lose_gone(&self, lease: &LeaseId, found: &Found<'_>) {
        let now = self.now();
        let mut deferred = Deferred::default();
        {
            let mut state = self.state();
            let Some(held) = state.held_mut(lease) else {
                return;
            };
            let gone = held.gone();
            match found {
                Found::Read(lock) => {
                    let loss = gone.loss(*lock);
                    let Some((resource, held)) = state.end(lease, End::Lost(loss), now) else {
                        return;
                    };
                    deferred.reports.push(gone.report(lease, *lock));
                    self.lose_held(&mut state, resource, held, loss, &mut deferred);
                }
                Found::Unread => {
                    let over = held.over.take();
                    let loss = End::Lost(Loss::GrantGone);
                    let Some((resource, held)) = state.end(lease, loss, now) else {
                        return;
                    };
                    let unexplained = Unexplained {
                        resource: resource.clone(),
                        held,
                        over,
                    };
                    state.unexplained.insert(lease.clone(), unexplained);
                    let (lease, grant) = (lease.clone(), gone.grant);
                    self.step(&mut state, |core, cx| {
                        core.explain_loss(cx, lease, grant, resource);
                    });
                }
            }
            self.execute_effects(&mut state, &mut deferred);
        }
        self.0.something_ended.notify_waiters();
        self.run_deferred(deferred);
    }

    /// Records why a lease is over, and reports it.
    pub(super) fn loss_explained(
        &self,
        state: &mut State,
        lease: &LeaseId,
        read: Option<Stored<Lock>>,
        deferred: &mut Deferred,
    ) {
        let Some(mut unexplained) = state.unexplained.remove(lease) else {
            return;
        };
        let gone = unexplained.held.gone();
        let lock = read.as_ref().map(|read| &read.value);
        let loss = gone.loss(lock);
        deferred.reports.push(gone.report(lease, lock));
        state.core.history.correct_end(lease, End::Lost(loss));
        if let Some(over) = &unexplained.over {
            over.send_replace(Some(Over::Lost(loss)));
        }
        if let Some(read) = read {
            // Nothing is left to be released, and that needs no other read.
            unexplained.held.stored = read;
        }
        let Unexplained { resource, held, .. } = unexplained;
        self.lose_held(state, resource, held, loss, deferred);
    }

    /// Reports a lease that is over, and releases what the store may still have of it.
    fn lose_held(
        &self,
        state: &mut State,
        resource: Resource,
        held: Held,
        loss: Loss,
        deferred: &mut Deferred,
    ) {
        deferred.record_loss(resource.clone(), held.ended(), loss, self.now());
        let session = held.session.id.clone();
        self.begin_release(state, held.into_release(resource), None);
        if loss == Loss::SessionRevoked {
            // Whatever is acquired with it meanwhile would be lost again.
            self.step(state, |core, cx| core.handle(cx, Input::RenewNow(session)));
        }
    }

    /// Why a lease is over, as it may be told: where that is being looked up, when it is known.
    pub async fn explained(&self, lease: &LeaseId, error: LeaseError) -> LeaseError {
        loop {
            let ended = self.0.something_ended.notified();
            {
                let state = self.state();
                if error != LeaseError::Lost(Loss::GrantGone)
                    || !state.unexplained.contains_key(lease)
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
}
