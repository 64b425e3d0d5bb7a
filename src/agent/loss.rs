//! Leases that end without a release by their app: they are taken out, reported, and their grants released.
//!
//! Why a grant is gone from the store is found out in `gone`.
//!
//! What the store shows of a loss depends on its reason. `app_silent`, `max_hold` and `agent_stopping`: this
//! agent released the lock. `session_expired` and `session_revoked`: others took over, or this agent released
//! it when the store answered again. `force_released`: free or the next waiter's, with an incident.
//! `grant_gone`: another's, or no object. `store_restored`: whatever the backup had. `agent_restarted`: the
//! lock is released when the old deadline has passed, or taken over.

use crate::protocol::ids::{LeaseId, Resource, SessionId};
use crate::protocol::lease::Loss;
use crate::protocol::time::Moment;

use super::Agent;
use super::core::effect::{Input, LostSession};
use super::core::release::{REFUSED_FOR, ReleaseOf};
use super::release::WhoEnds;
use super::state::{End, Ended, Held, State};

impl Agent {
    /// Ends a lease whose time is over: removes and reports it, and releases its grant.
    pub(super) fn end_if_lost(&self, lease: &LeaseId) {
        {
            let mut state = self.state();
            let now = self.now();
            let Some((held, loss)) = state.lost_lease(lease, now) else {
                return;
            };
            let (session, is_closing) = (held.session.id.clone(), held.is_closing);
            if state.deadline_of(&session).is_none_or(|until| now < until) {
                if is_closing {
                    drop(state);
                    // Its app ended it long ago. Its readers were told of no more than it had itself,
                    // so their time is over too.
                    let _done = self.start_release(lease, WhoEnds::App);
                    return;
                }
                // Only this lease; judged and removed in one step, so that no renewal comes
                // between. A waiter in this pod may get its grant.
                let ended = state.end_or_keep(lease, End::Lost(loss), now);
                drop(state);
                self.after_loss(ended, loss, now);
                return;
            }
        }
        // With the session everything goes. Its deadline has passed, so nothing can revive it.
        self.feed(Input::Timer);
    }

    /// Ends a lease that the store no longer knows.
    pub(super) fn lose_lease(&self, lease: &LeaseId, loss: Loss) {
        let now = self.now();
        let ended = self.state().end(lease, End::Lost(loss), now);
        let ended = ended.map(|(resource, held)| (resource, held.ended(), Some(held)));
        self.after_loss(ended, loss, now);
    }

    /// Reports a lease that was lost and releases its grant.
    pub(super) fn after_loss(
        &self,
        ended: Option<(Resource, Ended, Option<Held>)>,
        loss: Loss,
        now: Moment,
    ) {
        let Some((resource, ended, held)) = ended else {
            return;
        };
        self.0.something_ended.notify_waiters();
        self.report_lost(&resource, &ended, loss, now);
        let Some(held) = held else {
            return self.wake_sweeper_for_kept(&resource);
        };
        self.release_grant(held.into_release(resource));
    }

    /// One log line and the counters for a lease that its app did not end.
    pub(super) fn report_lost(&self, resource: &Resource, ended: &Ended, loss: Loss, now: Moment) {
        self.0.metrics.lease_lost(loss.as_str());
        self.0.metrics.lease_ended(now.since(ended.since));
        tracing::warn!(
            %resource, ownerId = %ended.owner, leaseId = %ended.lease,
            fencingToken = ended.token.get(), reason = loss.as_str(), "lease lost"
        );
    }

    /// Ends every lease of a lost session. Their grants are released, and the session is revoked, once
    /// the last promise has passed.
    pub(super) fn session_lost(&self, state: &mut State, over: LostSession) -> LostLeases {
        let now = self.now();
        let (session, loss) = (over.session.id.clone(), over.loss);
        if loss == Loss::StoreRestored {
            state.core.peers.forget_all();
        }
        for line in state.lines.values() {
            // Its queue entry is lost with the session.
            line.changed.notify_one();
        }
        // In this order on file, so that each lease has its own reason there.
        let leases = state.end_all_of(&session, loss, now);
        state.write_session_over();
        let kept = state.take_kept_of(&session);
        let told_until = leases.iter().map(|(_, held)| held.lease.told_until()).max();
        let told_until = told_until.unwrap_or(now).max(state.promised_until);
        self.step(state, |core, cx| core.end_lost(cx, over, told_until));
        let ended = leases.iter();
        let ended = ended.map(|(resource, held)| (resource.clone(), held.ended()));
        let ended = LostLeases {
            session,
            loss,
            at: now,
            leases: ended.collect(),
        };
        let leases = leases.into_iter();
        let leases = leases.map(|(resource, held)| held.into_release(resource));
        for what in leases.chain(kept) {
            let what = ReleaseOf {
                not_before: told_until,
                // By then others have taken over.
                give_up_at: Some(told_until.after(REFUSED_FOR)),
                ..what
            };
            self.begin_release(state, what, None);
        }
        ended
    }

    /// Reports the leases that were lost with their session.
    pub(super) fn report_lost_leases(&self, lost: &LostLeases) {
        let (session, leases) = (&lost.session, lost.leases.len());
        tracing::warn!(%session, reason = %lost.loss, leases, "session lost");
        for (resource, ended) in &lost.leases {
            self.report_lost(resource, ended, lost.loss, lost.at);
        }
        self.0.something_ended.notify_waiters();
    }
}

/// A lease that was lost by itself.
pub(super) struct LostByItself {
    pub(super) resource: Resource,
    pub(super) ended: Ended,
    pub(super) loss: Loss,
    pub(super) at: Moment,
}

/// The leases that were lost with their session.
pub(super) struct LostLeases {
    session: SessionId,
    loss: Loss,
    at: Moment,
    leases: Vec<(Resource, Ended)>,
}
