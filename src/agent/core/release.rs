//! The release of one grant. The lease is over when its app ends it; the release is written as soon
//! as possible.
//!
//! Invariants: once a release was sent, the grant is never used again, because the first attempt
//! may still be applied. Nothing is sent before `not_before`. A lock that does not name the grant
//! is a success only if a release of ours may have been applied.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::ids::Resource;
use crate::protocol::key::GrantKey;
use crate::protocol::lock::Lock;
use crate::protocol::object::{StoreError, Stored};
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::effect::{Answer, CallId, Effect, OpId, Reply, StoreCall};
use super::env::{Env, Machine};
use super::gone::Ending;
use super::limits::CALL_LIMIT;
use super::report::Report;

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often a release that met another write is tried again at once.
const AT_ONCE: u32 = 8;
/// For how long a release that is refused is tried. A refusal may be repaired, but the session is
/// not renewed for it forever: once that has ended, others may take over.
pub(in crate::agent) const REFUSED_FOR: Duration = Duration::from_secs(600);

/// What is to be released.
#[derive(Clone, Debug)]
pub(in crate::agent) struct ReleaseOf {
    pub(in crate::agent) resource: Resource,
    pub(in crate::agent) grant: GrantKey,
    /// The lock as last seen, if an attempt without a read is worth it.
    pub(in crate::agent) known: Option<Stored<Lock>>,
    /// The release request that is the reason; it is recorded in the lock if it still stands.
    pub(in crate::agent) request: Option<Arc<ReleaseRequest>>,
    /// The lease whose end this completes.
    pub(in crate::agent) ending: Option<Ending>,
    /// Whether a release was sent whose outcome is unknown.
    pub(in crate::agent) may_be_applied: bool,
    /// When the first attempt may be sent.
    pub(in crate::agent) not_before: Moment,
    /// When it is given up; only for a grant of a lost session.
    pub(in crate::agent) give_up_at: Option<Moment>,
}

impl ReleaseOf {
    /// Returns the release of a grant that no lease needs, as soon as possible.
    pub(in crate::agent) fn new(
        resource: Resource,
        grant: GrantKey,
        known: Option<Stored<Lock>>,
    ) -> Self {
        Self {
            resource,
            grant,
            known,
            request: None,
            ending: None,
            may_be_applied: false,
            not_before: Moment::default(),
            give_up_at: None,
        }
    }
}

/// The release of one grant.
#[derive(Clone, Debug)]
pub(super) struct Release {
    what: ReleaseOf,
    step: Step,
    /// The requests to answer.
    calls: Vec<CallId>,
    failures: u32,
    /// Conflicts so far.
    conflicts: u32,
    refused_since: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing was sent yet.
    Held(Moment),
    Pause(Moment),
    Reading(OpId),
    Writing(OpId, Revision),
}

/// What became of it.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The lock no longer names the grant, and that may be this agent's doing.
    Released,
    /// The lock did not name the grant before any release can have been applied; with the lock as it
    /// was then.
    WasGone(Option<Box<Stored<Lock>>>),
    /// It was given up.
    Abandoned,
}

impl Release {
    pub(super) const fn new(what: ReleaseOf, calls: Vec<CallId>) -> Self {
        Self {
            step: Step::Held(what.not_before),
            what,
            calls,
            failures: 0,
            conflicts: 0,
            refused_since: None,
        }
    }

    /// Returns the lease whose end it completes.
    pub(super) const fn ending(&self) -> Option<&Ending> {
        self.what.ending.as_ref()
    }

    /// Returns when the first attempt may be sent, if it has to wait for that.
    pub(super) const fn held_until(&self) -> Option<Moment> {
        match self.step {
            Step::Held(until) => Some(until),
            Step::Pause(_) | Step::Reading(_) | Step::Writing(..) => None,
        }
    }

    /// Returns whether its session was lost.
    pub(super) const fn is_of_lost_session(&self) -> bool {
        self.what.give_up_at.is_some()
    }

    /// Returns when `timer` has something to do.
    pub(super) const fn timeout(&self) -> Option<Moment> {
        match self.step {
            Step::Held(until) | Step::Pause(until) => Some(until),
            Step::Reading(_) | Step::Writing(..) => None,
        }
    }

    /// Ends the wait before the first attempt: no app believes in the grant any more.
    pub(super) const fn release_now(&mut self, now: Moment) {
        if let Step::Held(_) = self.step {
            self.step = Step::Held(now);
        }
    }

    /// Records the lock with this grant, as the watch reported it.
    pub(super) fn observe(&mut self, stored: Stored<Lock>) {
        let known = self.what.known.as_ref();
        if known.is_none_or(|known| known.version < stored.version) {
            self.what.known = Some(stored);
        }
    }

    /// Answers a request once it has ended.
    pub(super) fn join(&mut self, calls: Vec<CallId>) {
        self.calls.extend(calls);
    }

    /// Makes the attempt that is due.
    pub(super) fn timer(&mut self, env: &mut Env) -> Option<Outcome> {
        if self.timeout().is_none_or(|until| env.now < until) {
            return None;
        }
        self.attempt(env)
    }

    /// Takes the answer to its call.
    pub(super) fn answered(&mut self, op: OpId, answer: Answer, env: &mut Env) -> Option<Outcome> {
        match self.step {
            Step::Reading(reading) if reading == op => match answer.into_lock() {
                Ok(found) => self.found(found.map(|found| *found), env),
                // It was deleted, and recreated for another resource.
                Err(StoreError::Collision { .. }) => self.found(None, env),
                Err(error) => self.failed(&error, env),
            },
            Step::Writing(writing, version) if writing == op => match answer.into_lock() {
                Ok(_) => Some(self.finish(Outcome::Released, env)),
                Err(error) => self.write_failed(&error, version, env),
            },
            _ => None,
        }
    }

    fn attempt(&mut self, env: &mut Env) -> Option<Outcome> {
        if let Some(known) = self.what.known.take() {
            return self.found(Some(known), env);
        }
        let call = StoreCall::GetLock(self.what.resource.clone());
        self.step = Step::Reading(env.call(self.machine(), call, CALL_LIMIT));
        None
    }

    fn found(&mut self, found: Option<Stored<Lock>>, env: &mut Env) -> Option<Outcome> {
        let next = found.as_ref().and_then(|found| self.released(found, env));
        match (found, next) {
            (Some(current), Some(next)) => {
                // Closes the race with a waiter that joins the queue meanwhile: the release then
                // reads again and hands over instead.
                let version = current.version;
                let call = StoreCall::UpdateLock(Box::new(current), Box::new(next));
                self.step = Step::Writing(env.call(self.machine(), call, CALL_LIMIT), version);
                None
            }
            _ if self.what.may_be_applied => Some(self.finish(Outcome::Released, env)),
            (found, _) => Some(self.finish(Outcome::WasGone(found.map(Box::new)), env)),
        }
    }

    /// Returns the lock after the release, with its record if a person's request still stands: the
    /// request is then in the same object, and the policies deny a record without it. `None` if the
    /// lock does not name the grant.
    fn released(&self, current: &Stored<Lock>, env: &Env) -> Option<Lock> {
        let (lock, at, grant) = (&current.value, current.version, &self.what.grant);
        let mint = env.horizon.hand_over_mint();
        match lock.settings.asked_of(&grant.id) {
            Some(request) if self.what.request.as_ref() == Some(request) => {
                lock.release_on_request(at, &mint, grant, request, env.wall)
            }
            _ => lock.release(at, &mint, grant, env.wall),
        }
    }

    fn write_failed(
        &mut self,
        error: &StoreError,
        version: Revision,
        env: &mut Env,
    ) -> Option<Outcome> {
        match error {
            // A 404 may be a proxy's; the next read tells. A conflict counts as not applied. Where a
            // proxy repeats writes it may be our own success, and the release is then reported as a
            // loss: what cannot be told from a manual edit fails closed.
            StoreError::Conflict | StoreError::NotFound(_) => {
                // The watch has often reported the write that came first before its own answer came.
                self.what.known.take_if(|known| known.version <= version);
                self.refused_since = None;
                self.conflicts += 1;
                if self.conflicts.is_multiple_of(AT_ONCE) {
                    self.failures = 0;
                    self.pause(env)
                } else {
                    // All waiters wait for this write, so it is they who pause.
                    self.attempt(env)
                }
            }
            StoreError::DeniedByPolicy(_) | StoreError::Invalid(_)
                if self.what.request.is_some() =>
            {
                // A lock that stays held is worse than a missing record.
                if let Some(request) = self.what.request.take() {
                    let (resource, actor) = (self.what.resource.clone(), request.actor.clone());
                    env.out.report(Report::RequestNotRecorded(resource, actor));
                }
                self.what.known = None;
                self.attempt(env)
            }
            error => {
                self.what.known = None;
                self.what.may_be_applied |= matches!(error, StoreError::Ambiguous(_));
                self.failed(error, env)
            }
        }
    }

    fn failed(&mut self, error: &StoreError, env: &mut Env) -> Option<Outcome> {
        let resource = self.what.resource.clone();
        env.out
            .report(Report::ReleaseFailed(resource, error.clone()));
        self.refused_since = if error.is_transient() {
            None
        } else {
            Some(self.refused_since.unwrap_or(env.now))
        };
        let since = self.refused_since;
        if since.is_some_and(|since| env.now.since(since) >= REFUSED_FOR) {
            return Some(self.finish(Outcome::Abandoned, env));
        }
        self.pause(env)
    }

    fn pause(&mut self, env: &mut Env) -> Option<Outcome> {
        let until = env.pause(self.failures, LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        if self.what.give_up_at.is_some_and(|at| until >= at) {
            return Some(self.finish(Outcome::Abandoned, env));
        }
        self.step = Step::Pause(until);
        None
    }

    fn finish(&mut self, outcome: Outcome, env: &mut Env) -> Outcome {
        env.out.report(match outcome {
            Outcome::Abandoned => Report::ReleaseAbandoned,
            Outcome::Released | Outcome::WasGone(_) => Report::Released,
        });
        for call in self.calls.drain(..) {
            env.out.push(Effect::Reply(call, Reply::Done));
        }
        outcome
    }

    fn machine(&self) -> Machine {
        Machine::Release(self.what.grant.id.clone())
    }
}
