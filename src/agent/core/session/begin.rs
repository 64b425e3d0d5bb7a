//! How a session begins: the store's revision is listed, then the object is created.

use crate::agent::api::AcquireError;
use crate::agent::core::effect::{Answer, OpId, StoreCall};
use crate::agent::core::env::{Env, Machine};
use crate::agent::core::limits::{CALL_LIMIT, REQUEST_PAUSE};
use crate::agent::core::report::Report;
use crate::protocol::object::{StoreError, Stored};
use crate::protocol::session::{KeepAlive, Revocation, Session};
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::config::SessionConfig;
use super::live::Live;

/// A session that begins.
#[derive(Clone, Debug)]
pub(super) struct Begin {
    stage: Stage,
    step: Step,
    failures: u32,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Listing one lock, because tokens are made from the store's revision.
    Listing,
    /// Creating the object. Its name is never used again, so the creation is repeated until the
    /// object is known to exist.
    Creating(Box<Creation>),
}

#[derive(Clone, Debug)]
struct Creation {
    session: Session,
    listed: Revision,
    /// Before the first attempt was sent.
    sent: Moment,
    /// Why it is not known whether the last attempt was applied: the object is read.
    unclear: Option<StoreError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Call(OpId),
    Pause(Moment),
}

/// What an answer led to.
pub(super) enum Progress {
    /// The next call was sent.
    Continues,
    /// An attempt failed; the next follows at this moment.
    Retries(Moment, StoreError),
    /// It cannot begin.
    Failed(AcquireError),
    /// It was revoked as soon as it was created.
    Revoked(Box<Revocation>),
    /// It has begun.
    Begun(Box<Live>),
}

impl Begin {
    /// Begins with a list, unless one has just returned the store's revision.
    pub(super) fn new(listed: Option<Revision>, config: &SessionConfig, env: &mut Env) -> Self {
        let stage = match listed {
            Some(listed) => Stage::creating(listed, config, env),
            None => Stage::Listing,
        };
        let mut begin = Self {
            stage,
            step: Step::Pause(env.now),
            failures: 0,
        };
        begin.timer(env);
        begin
    }

    /// Returns the session that may have been created, and the call that is in flight.
    pub(super) fn session(&self) -> Option<(Session, Option<OpId>)> {
        let in_flight = match self.step {
            Step::Call(op) => Some(op),
            Step::Pause(_) => None,
        };
        match &self.stage {
            Stage::Listing => None,
            Stage::Creating(creation) => Some((creation.session.clone(), in_flight)),
        }
    }

    /// Returns when `timer` has something to do.
    pub(super) const fn timeout(&self) -> Option<Moment> {
        match self.step {
            Step::Call(_) => None,
            Step::Pause(until) => Some(until),
        }
    }

    /// Makes the attempt that is due.
    pub(super) fn timer(&mut self, env: &mut Env) {
        if self.timeout().is_none_or(|until| env.now < until) {
            return;
        }
        let call = match &mut self.stage {
            Stage::Listing => StoreCall::ListOne,
            Stage::Creating(creation) => {
                StoreCall::CreateSession(Box::new(creation.session.clone()))
            }
        };
        self.step = Step::Call(env.call(Machine::Session, call, CALL_LIMIT));
    }

    /// Takes the answer to its call.
    pub(super) fn answered(
        &mut self,
        op: OpId,
        answer: Answer,
        config: &SessionConfig,
        env: &mut Env,
    ) -> Progress {
        if self.step != Step::Call(op) {
            return Progress::Continues;
        }
        match &mut self.stage {
            Stage::Listing => self.listed(answer, config, env),
            Stage::Creating(_) => self.created(answer, env),
        }
    }

    fn listed(&mut self, answer: Answer, config: &SessionConfig, env: &mut Env) -> Progress {
        match answer.into_page() {
            Ok(page) => {
                self.stage = Stage::creating(page.revision, config, env);
                self.step = Step::Pause(env.now);
                self.timer(env);
                Progress::Continues
            }
            Err(AcquireError::Store(error)) => self.failed(error, env),
            Err(error) => Progress::Failed(error),
        }
    }

    fn created(&mut self, answer: Answer, env: &mut Env) -> Progress {
        let Stage::Creating(creation) = &mut self.stage else {
            return Progress::Continues;
        };
        let error = match (answer.into_session(), creation.unclear.take()) {
            (Ok(Some(stored)), _) => return creation.begun(*stored, env),
            (Err(error @ (StoreError::Conflict | StoreError::Ambiguous(_))), None) => {
                creation.unclear = Some(error);
                let call = StoreCall::GetSession(creation.session.id.clone());
                self.step = Step::Call(env.call(Machine::Session, call, CALL_LIMIT));
                return Progress::Continues;
            }
            (_, Some(unclear)) => unclear,
            (Err(error), None) => error,
            (Ok(None), None) => StoreError::no_result(),
        };
        self.failed(error, env)
    }

    fn failed(&mut self, error: StoreError, env: &mut Env) -> Progress {
        // A name that exists is this session's: the read of it failed.
        if !error.is_transient() && error != StoreError::Conflict {
            return Progress::Failed(error.into());
        }
        let until = env.pause(self.failures, REQUEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.step = Step::Pause(until);
        Progress::Retries(until, error)
    }
}

impl Stage {
    fn creating(listed: Revision, config: &SessionConfig, env: &mut Env) -> Self {
        Self::Creating(Box::new(Creation {
            session: config.new_session(env),
            listed,
            sent: env.now,
            unclear: None,
        }))
    }
}

impl Creation {
    fn begun(&self, stored: Stored<Session>, env: &mut Env) -> Progress {
        if let Some(revocation) = stored.value.revoked {
            return Progress::Revoked(Box::new(revocation));
        }
        let keep_alive = KeepAlive::begun(self.sent, self.session.ttl);
        if !keep_alive.is_valid(env.now) {
            return Progress::Failed(AcquireError::SessionLost);
        }
        let (id, ttl) = (self.session.id.clone(), self.session.ttl.get());
        env.out.report(Report::SessionStarted(id, ttl));
        let live = Live::new(stored, keep_alive, self.listed, env);
        Progress::Begun(Box::new(live))
    }
}
