//! A lease that is over because its grant is gone, while the lock is read to find out why.
//!
//! The loss is reported when the reason is known, a second later at most; a reason that cannot be
//! found out is reported as `grant_gone`.

use std::time::Duration;

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;
use crate::protocol::time::Moment;

use super::effect::{Answer, OpId, StoreCall};
use super::env::{Env, Machine};
use super::limits::CALL_LIMIT;

/// For how long the reason is looked for.
const EXPLAINED_WITHIN: Duration = Duration::from_secs(1);
/// The longest pause between reads.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A lease whose loss is not explained yet.
#[derive(Clone, Debug)]
pub(super) struct LostLease {
    lease: LeaseId,
    resource: Resource,
    until: Moment,
    step: Step,
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Pause(Moment),
    Reading(OpId),
}

/// What the read showed, as far as one was answered in time.
pub(super) type Read = Option<Box<Stored<Lock>>>;

impl LostLease {
    pub(super) fn new(lease: LeaseId, resource: Resource, env: &mut Env) -> Self {
        let mut lost = Self {
            lease,
            resource,
            until: env.now.after(EXPLAINED_WITHIN),
            step: Step::Pause(env.now),
            failures: 0,
        };
        lost.read(env);
        lost
    }

    /// Returns when `timer` has something to do.
    pub(super) fn timeout(&self) -> Moment {
        match self.step {
            Step::Pause(until) => until.min(self.until),
            Step::Reading(_) => self.until,
        }
    }

    /// Does what is due. Returns what is known once the time is over.
    pub(super) fn timer(&mut self, env: &mut Env) -> Option<Read> {
        if env.now >= self.until {
            return Some(None);
        }
        if matches!(self.step, Step::Pause(until) if env.now >= until) {
            self.read(env);
        }
        None
    }

    /// Takes the answer to its call. Returns what is known, once it is.
    pub(super) fn answered(&mut self, op: OpId, answer: Answer, env: &mut Env) -> Option<Read> {
        if self.step != Step::Reading(op) {
            return None;
        }
        match answer.into_lock() {
            Ok(found) => Some(found),
            Err(error) if !error.is_transient() => Some(None),
            Err(_) => {
                let until = env.pause(self.failures, LONGEST_PAUSE);
                self.failures = self.failures.saturating_add(1);
                self.step = Step::Pause(until);
                None
            }
        }
    }

    fn read(&mut self, env: &mut Env) {
        let machine = Machine::Lost(self.lease.clone());
        let call = StoreCall::GetLock(self.resource.clone());
        self.step = Step::Reading(env.call(machine, call, CALL_LIMIT));
    }
}
