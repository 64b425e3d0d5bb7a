//! Revokes sessions that this agent no longer uses, so that other agents need not wait until they
//! expire.
//!
//! None of it is needed for safety. Invariant: nothing is written before the last promise of the
//! session has passed.

use std::time::Duration;

use crate::protocol::object::{StoreError, Stored};
use crate::protocol::session::{Revocation, RevokeReason, Session};
use crate::protocol::time::Moment;

use super::effect::{Answer, CallId, Effect, OpId, Reply, StoreCall};
use super::env::{Env, Machine};
use super::limits::CALL_LIMIT;
use super::report::Report;

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// For how long attempts are made; by then the session has expired for everybody.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(600);

/// A session that is over.
#[derive(Clone, Debug)]
pub(super) struct EndingSession {
    session: Session,
    /// Its last call, which is answered first: one write to an object is in flight at a time.
    last_call: Option<OpId>,
    step: Step,
    failures: u32,
    /// `None` for a session that the agent ends itself: one attempt.
    give_up_at: Option<Moment>,
    /// The request to answer.
    request: Option<CallId>,
}

/// The sessions that are over and not revoked yet.
#[derive(Clone, Debug, Default)]
pub(super) struct EndingSessions(Vec<EndingSession>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Pause(Moment),
    Reading(OpId),
    Revoking(OpId),
    Done,
}

impl EndingSessions {
    /// Returns whether there is none.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a session, and does what is due. Its last call may have been answered before.
    pub(super) fn add(&mut self, mut ending: EndingSession, env: &mut Env) {
        ending.last_call.take_if(|op| !env.out.is_in_flight(*op));
        ending.timer(env);
        self.0.push(ending);
    }

    /// Returns when `timer` has something to do.
    pub(super) fn timeout(&self) -> Option<Moment> {
        self.0.iter().filter_map(EndingSession::timeout).min()
    }

    /// Does what is due.
    pub(super) fn timer(&mut self, env: &mut Env) {
        for ending in &mut self.0 {
            ending.timer(env);
        }
    }

    /// Takes an answer, which may belong to the call of one of them.
    pub(super) fn answered(&mut self, op: OpId, answer: &Answer, env: &mut Env) {
        for ending in &mut self.0 {
            ending.answered(op, answer, env);
        }
        self.0.retain(|ending| !ending.is_done());
    }
}

impl EndingSession {
    /// A session that was lost. No app was promised anything of it after `not_before`.
    pub(super) const fn lost(
        session: Session,
        last_call: Option<OpId>,
        not_before: Moment,
    ) -> Self {
        Self {
            session,
            last_call,
            step: Step::Pause(not_before),
            failures: 0,
            give_up_at: Some(not_before.after(GIVEN_UP_AFTER)),
            request: None,
        }
    }

    /// A session that the agent ends: nothing needs it, or the agent stops.
    pub(super) const fn by_agent(
        session: Session,
        last_call: Option<OpId>,
        request: Option<CallId>,
        now: Moment,
    ) -> Self {
        Self {
            session,
            last_call,
            step: Step::Pause(now),
            failures: 0,
            give_up_at: None,
            request,
        }
    }

    /// Returns whether nothing is left to do.
    fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// Returns when `timer` has something to do.
    const fn timeout(&self) -> Option<Moment> {
        match self.step {
            Step::Pause(until) if self.last_call.is_none() => Some(until),
            _ => None,
        }
    }

    /// Does what is due.
    fn timer(&mut self, env: &mut Env) {
        if self.timeout().is_some_and(|at| env.now >= at) {
            let call = StoreCall::GetSession(self.session.id.clone());
            self.step = Step::Reading(env.call(Machine::Ending, call, CALL_LIMIT));
        }
    }

    /// Takes an answer, if it belongs to a call of this session.
    fn answered(&mut self, op: OpId, answer: &Answer, env: &mut Env) {
        if self.last_call.take_if(|last| *last == op).is_some() {
            return self.timer(env);
        }
        match self.step {
            Step::Reading(reading) if reading == op => match answer.clone().into_session() {
                Ok(Some(found)) => self.revoke(*found, env),
                Ok(None) => self.finish(env),
                Err(error) => self.failed(&error, env),
            },
            Step::Revoking(revoking) if revoking == op => match answer.clone().into_session() {
                Ok(_) | Err(StoreError::NotFound(_)) => self.finish(env),
                Err(error) => self.failed(&error, env),
            },
            _ => {}
        }
    }

    fn revoke(&mut self, found: Stored<Session>, env: &mut Env) {
        let revocation = Revocation {
            at: env.wall,
            by: self.session.pod.name.clone(),
            reason: RevokeReason::Ended,
        };
        let Some(revoked) = found.value.revoked(revocation) else {
            return self.finish(env);
        };
        // Closes the race with an own renewal that is still to be applied.
        let call = StoreCall::UpdateSession(Box::new(found), Box::new(revoked));
        self.step = Step::Revoking(env.call(Machine::Ending, call, CALL_LIMIT));
    }

    fn failed(&mut self, error: &StoreError, env: &mut Env) {
        let id = self.session.id.clone();
        let Some(give_up_at) = self.give_up_at else {
            env.out
                .report(Report::EndingSessionFailed(id, error.clone()));
            return self.finish(env);
        };
        env.out
            .report(Report::RevokingSessionFailed(id, error.clone()));
        let until = env.pause(self.failures, LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        if until >= give_up_at {
            return self.finish(env);
        }
        self.step = Step::Pause(until);
    }

    fn finish(&mut self, env: &mut Env) {
        self.step = Step::Done;
        if let Some(request) = self.request.take() {
            env.out.push(Effect::Reply(request, Reply::Done));
        }
    }
}
