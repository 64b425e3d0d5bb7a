//! Lists from time to time what the session holds, while grants are warm or were used again: the watch
//! reports who waits for them, and a watch can be silent without being broken. Without a write nothing
//! else would show it.

use std::time::Duration;

use crate::protocol::ids::SessionId;
use crate::protocol::lock::Lock;
use crate::protocol::object::Page;
use crate::protocol::time::Moment;

use super::effect::{Answer, OpId, StoreCall};
use super::env::{Env, Machine};
use super::limits::CALL_LIMIT;
use super::own::Own;
use super::report::Report;

/// Polls what one session holds.
#[derive(Clone, Debug)]
pub(super) struct WarmPoll {
    session: SessionId,
    /// A third of the period.
    third: Duration,
    due: Moment,
    listing: Option<OpId>,
}

impl WarmPoll {
    /// Begins with the session.
    pub(super) fn new(session: SessionId, period: Duration, env: &mut Env) -> Self {
        let mut poll = Self {
            session,
            third: period / 3,
            due: env.now,
            listing: None,
        };
        poll.pause(env);
        poll
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
            self.listing = Some(env.call(Machine::WarmPoll, call, CALL_LIMIT));
        } else {
            self.pause(env);
        }
    }

    /// Takes the answer to its list. Returns the session and what it holds.
    pub(super) fn answered(
        &mut self,
        op: OpId,
        answer: Answer,
        env: &mut Env,
    ) -> Option<(SessionId, Box<Page<Lock>>)> {
        self.listing.take_if(|listing| *listing == op)?;
        self.pause(env);
        let session = self.session.clone();
        match answer {
            Answer::Page(page) => Some((session, page)),
            Answer::Failed(error) => {
                env.out.report(Report::ListingFailed(session, error));
                None
            }
            Answer::Lock(_)
            | Answer::LockWithRevision(_)
            | Answer::Session(_)
            | Answer::WentBack(_) => None,
        }
    }

    fn pause(&mut self, env: &mut Env) {
        let jitter = 0.9 + 0.2 * env.rng.fraction();
        self.due = env.now.after(self.third.mul_f64(jitter));
    }
}
