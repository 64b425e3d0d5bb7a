//! What the store may have for a claim that no caller needs any more: a grant, which is released,
//! or a queue entry, which is removed.
//!
//! Invariant: while a write of unknown outcome may still be applied, it is looked for.

use std::time::Duration;

use crate::protocol::ids::Resource;
use crate::protocol::key::GrantKey;
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::effect::{Answer, OpId, StoreCall};
use super::env::{Env, Machine};
use super::limits::CALL_LIMIT;
use super::release::ReleaseOf;
use super::report::ClaimReport;

/// How long a write may still be applied after its time limit: the API server ends a
/// request after 60 s, and a proxy on the way may keep it as long again.
const APPLIED_WITHIN: Duration = Duration::from_secs(120);
/// The longest pause between reads.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A write that was sent and whose outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) enum Uncertain {
    /// A compare-and-swap on this version: once the lock has another, it cannot be applied.
    Swap(Revision),
    /// A join. It can be applied to any version, and a proxy may repeat it.
    Join,
}

/// What the store may have for a claim.
#[derive(Clone, Debug)]
pub(super) struct Leftover {
    resource: Resource,
    grant: GrantKey,
    uncertain: Option<Uncertain>,
    step: Step,
    failures: u32,
    give_up_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Pause(Moment),
    Reading(OpId),
    Leaving(OpId),
}

/// What became of it.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The store has nothing for the claim, and will not.
    Nothing,
    /// The store has its grant, which is to be released.
    Granted(Box<ReleaseOf>),
}

impl Leftover {
    pub(super) fn new(
        resource: Resource,
        grant: GrantKey,
        uncertain: Option<Uncertain>,
        now: Moment,
    ) -> Self {
        Self {
            resource,
            grant,
            uncertain,
            step: Step::Pause(now),
            failures: 0,
            give_up_at: now.after(APPLIED_WITHIN),
        }
    }

    /// Looks for another write as well.
    pub(super) fn join(&mut self, uncertain: Option<Uncertain>) {
        self.uncertain = match (self.uncertain, uncertain) {
            (Some(Uncertain::Join), _) | (_, Some(Uncertain::Join)) => Some(Uncertain::Join),
            (known, more) => more.or(known),
        };
    }

    /// Returns when `timer` has something to do.
    pub(super) const fn timeout(&self) -> Option<Moment> {
        match self.step {
            Step::Pause(until) => Some(until),
            Step::Reading(_) | Step::Leaving(_) => None,
        }
    }

    /// Reads the lock, if that is due.
    pub(super) fn timer(&mut self, env: &mut Env) {
        if self.timeout().is_some_and(|until| env.now >= until) {
            let call = StoreCall::GetLock(self.resource.clone());
            self.step = Step::Reading(env.call(self.machine(), call, CALL_LIMIT));
        }
    }

    /// Takes the answer to its call.
    pub(super) fn answered(&mut self, op: OpId, answer: Answer, env: &mut Env) -> Option<Outcome> {
        match self.step {
            Step::Reading(reading) if reading == op => match answer.into_lock() {
                Ok(Some(found)) => self.found(*found, env),
                Ok(None) => Some(Outcome::Nothing),
                Err(_) => self.retry(env),
            },
            Step::Leaving(leaving) if leaving == op => match answer.into_lock() {
                // It may be applied once more, or the entry was a later join's.
                Ok(_) if self.uncertain == Some(Uncertain::Join) => self.retry(env),
                Ok(_) => Some(Outcome::Nothing),
                Err(error) => {
                    let resource = self.resource.clone();
                    env.out
                        .report(ClaimReport::LeavingQueueFailed(resource, error));
                    self.retry(env)
                }
            },
            _ => None,
        }
    }

    fn found(&mut self, found: Stored<Lock>, env: &mut Env) -> Option<Outcome> {
        if found.value.is_held_by(&self.grant) {
            return Some(self.granted(found, env));
        }
        if let Some(next) = found.value.leave_queue(&self.grant) {
            // Closes the race with a hand-over to us: what remains is the queue that was read.
            let call = StoreCall::UpdateLock(Box::new(found), Box::new(next));
            self.step = Step::Leaving(env.call(self.machine(), call, CALL_LIMIT));
            return None;
        }
        match self.uncertain {
            None => Some(Outcome::Nothing),
            Some(Uncertain::Swap(on)) if found.version != on => Some(Outcome::Nothing),
            Some(Uncertain::Swap(_) | Uncertain::Join) => self.retry(env),
        }
    }

    fn granted(&self, found: Stored<Lock>, env: &mut Env) -> Outcome {
        let report = ClaimReport::GrantWithoutCaller(self.resource.clone(), self.grant.id.clone());
        env.out.report(report);
        let what = ReleaseOf::new(self.resource.clone(), self.grant.clone(), Some(found));
        Outcome::Granted(Box::new(what))
    }

    fn retry(&mut self, env: &mut Env) -> Option<Outcome> {
        let until = env.pause(self.failures, LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        if until >= self.give_up_at {
            return Some(Outcome::Nothing);
        }
        self.step = Step::Pause(until);
        None
    }

    fn machine(&self) -> Machine {
        Machine::Leftover(self.grant.id.clone())
    }
}
