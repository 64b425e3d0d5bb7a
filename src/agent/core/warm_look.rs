//! Lists from time to time what the session holds, while grants are warm or were used again: who waits
//! for one is reported by the watch, and a watch can be silent without being broken. Without a write
//! nothing else would show it.

use std::time::Duration;

use crate::protocol::ids::SessionId;
use crate::protocol::time::Moment;

use super::effect::{OpId, StoreCall};
use super::env::{Env, Machine};
use super::limits::CALL_LIMIT;
use super::own::Own;

/// The look of one session.
#[derive(Clone, Debug)]
pub(super) struct WarmLook {
    session: SessionId,
    /// A third of the TTL.
    third: Duration,
    due: Moment,
    listing: Option<OpId>,
}

impl WarmLook {
    /// Begins with the session.
    pub(super) fn new(session: SessionId, ttl: Duration, env: &mut Env) -> Self {
        let mut look = Self {
            session,
            third: ttl / 3,
            due: env.now,
            listing: None,
        };
        look.pause(env);
        look
    }

    /// Returns when `timer` has something to do.
    pub(super) fn timeout(&self) -> Option<Moment> {
        self.listing.is_none().then_some(self.due)
    }

    /// Lists what the session holds, if that is due and needed.
    pub(super) fn timer(&mut self, own: &mut Own, env: &mut Env) {
        if self.timeout().is_none_or(|due| env.now < due) {
            return;
        }
        let is_idle = own
            .warm_grants()
            .any(|(_, warm)| warm.idle_for(env.now) >= self.third);
        if std::mem::take(&mut own.was_reused) || is_idle {
            let call = StoreCall::ListHeld(self.session.clone());
            self.listing = Some(env.call(Machine::WarmLook, call, CALL_LIMIT));
        } else {
            self.pause(env);
        }
    }

    /// Takes the answer to its list. Returns the session whose locks were listed.
    pub(super) fn answered(&mut self, op: OpId, env: &mut Env) -> Option<SessionId> {
        self.listing.take_if(|listing| *listing == op)?;
        self.pause(env);
        Some(self.session.clone())
    }

    fn pause(&mut self, env: &mut Env) {
        let jitter = 0.9 + 0.2 * env.rng.fraction();
        self.due = env.now.after(self.third.mul_f64(jitter));
    }
}
