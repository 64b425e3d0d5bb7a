//! A session that is valid until its deadline, and its renewals.
//!
//! Invariant: what depends on the session is valid only before `KeepAlive::valid_until`, compared
//! with the clock at every use.

use std::time::Duration;

use crate::agent::core::effect::{Answer, Effect, OpId, Record, StoreCall};
use crate::agent::core::env::{Env, Machine};
use crate::agent::core::limits::CALL_LIMIT;
use crate::agent::core::report::Report;
use crate::agent::core::saved::SavedSession;
use crate::protocol::ids::SessionId;
use crate::protocol::key::SessionKey;
use crate::protocol::lease::Loss;
use crate::protocol::object::{StoreError, Stored};
use crate::protocol::session::{KeepAlive, RenewalFailures, Revocation, Session};
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

/// A session that is valid until its deadline.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Live {
    /// The object as it was last read or written.
    stored: Stored<Session>,
    keep_alive: KeepAlive,
    /// The renewals that failed.
    failures: RenewalFailures,
    /// From where on its locks are watched.
    listed: Revision,
    renewal: Renewal,
    /// Before the first attempt of the current renewal was sent. A later attempt's success counts
    /// from here, too: which of them was applied is not known.
    first_sent: Option<Moment>,
    /// Failed attempts in a row.
    failed: u32,
    /// Renew again once the current attempt is answered.
    renew_again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Renewal {
    /// When it is due while a lock needs the session, and otherwise.
    Idle {
        due: Moment,
        idle_due: Moment,
    },
    Sent(OpId),
    /// The attempt got no clear answer, or another write came first.
    Reading(OpId),
    Backoff(Moment),
}

/// What an answer led to.
pub(super) enum Progress {
    /// The next call was sent.
    Continues,
    /// It is valid for longer.
    Renewed,
    /// The attempt failed; the next follows at this moment.
    Failed(Moment),
    /// The session is lost.
    Lost(Loss),
    /// The session was revoked.
    Revoked(Box<Revocation>),
}

impl Live {
    /// Returns a session that was created or renewed just now, whose locks are watched from `listed`
    /// on.
    pub(super) fn new(
        stored: Stored<Session>,
        keep_alive: KeepAlive,
        listed: Revision,
        env: &mut Env,
    ) -> Self {
        Self {
            failures: stored.value.failures.clone(),
            stored,
            renewal: Renewal::idle(&keep_alive, env),
            keep_alive,
            listed,
            first_sent: None,
            failed: 0,
            renew_again: false,
        }
    }

    /// Returns its name.
    pub(in crate::agent) const fn id(&self) -> &SessionId {
        &self.stored.value.id
    }

    /// Returns its name and this pod.
    pub(in crate::agent) fn key(&self) -> SessionKey {
        self.stored.value.key()
    }

    /// Returns what is on file of it.
    pub(in crate::agent) fn saved(&self) -> SavedSession {
        SavedSession::of(&self.stored, self.valid_until())
    }

    /// Returns the object as it was last read or written.
    pub(in crate::agent) const fn stored(&self) -> &Stored<Session> {
        &self.stored
    }

    /// Returns the local deadline.
    pub(in crate::agent) const fn valid_until(&self) -> Moment {
        self.keep_alive.valid_until()
    }

    /// Returns how long it is still valid.
    pub(in crate::agent) const fn remaining(&self, now: Moment) -> Duration {
        self.keep_alive.remaining(now)
    }

    /// Returns whether it must be renewed before the next grant.
    pub(in crate::agent) fn is_stale(&self, now: Moment) -> bool {
        self.keep_alive.is_stale(now)
    }

    /// Returns whether the last attempt to renew it failed.
    pub(in crate::agent) const fn is_failing(&self) -> bool {
        self.failed > 0
    }

    /// Returns the revision from which on its locks are watched.
    pub(in crate::agent::core) const fn listed(&self) -> Revision {
        self.listed
    }

    /// Returns the call that is in flight.
    pub(super) const fn in_flight(&self) -> Option<OpId> {
        match self.renewal {
            Renewal::Sent(op) | Renewal::Reading(op) => Some(op),
            Renewal::Idle { .. } | Renewal::Backoff(_) => None,
        }
    }

    /// Returns when the next attempt to renew it is due: often while a lock needs it, otherwise
    /// just to keep it alive.
    pub(super) const fn due(&self, is_idle: bool) -> Option<Moment> {
        match self.renewal {
            Renewal::Idle { idle_due, .. } if is_idle => Some(idle_due),
            Renewal::Idle { due, .. } => Some(due),
            Renewal::Backoff(until) => Some(until),
            Renewal::Sent(_) | Renewal::Reading(_) => None,
        }
    }

    /// Returns whether the next attempt is due.
    pub(super) fn is_due(&self, is_idle: bool, now: Moment) -> bool {
        self.due(is_idle).is_some_and(|due| now >= due)
    }

    /// Renews soon, because a caller waits for it. After a failed attempt it is not at once.
    pub(super) fn hurry(&mut self, longest: Duration, env: &mut Env) {
        match self.renewal {
            Renewal::Idle { .. } => self.renew(env),
            Renewal::Backoff(until) => {
                self.renewal = Renewal::Backoff(until.min(env.pause(self.failed, longest)));
            }
            Renewal::Sent(_) | Renewal::Reading(_) => {}
        }
    }

    /// Sends a renewal now; after the attempt that is in flight, which may have been sent before
    /// what is to be found out.
    pub(super) fn renew_now(&mut self, env: &mut Env) {
        if self.in_flight().is_some() {
            self.renew_again = true;
        } else {
            self.renew(env);
        }
    }

    /// Sends a renewal.
    pub(super) fn renew(&mut self, env: &mut Env) {
        self.first_sent.get_or_insert(env.now);
        self.renew_again = false;
        let Ok(next) = self.stored.value.renewed(env.wall, self.failures.clone()) else {
            // No revoked version is stored here; a read would show it.
            return self.read(env);
        };
        // Closes the race with a revocation: both write on the version that they read, and one
        // succeeds.
        let call = StoreCall::UpdateSession(Box::new(self.stored.clone()), Box::new(next));
        let limit = self.keep_alive.attempt_timeout(env.now);
        // Sent later, it would only make other pods wait for a session that is lost.
        let not_after = Some(self.valid_until());
        let op = env.call_before(Machine::Session, call, limit, not_after);
        self.renewal = Renewal::Sent(op);
    }

    /// Sends no renewal because of an earlier request.
    pub(super) const fn renew_no_more(&mut self) {
        self.renew_again = false;
    }

    /// Takes the answer to its call. `longest` bounds the pause after a failure.
    pub(super) fn answered(
        &mut self,
        op: OpId,
        answer: Answer,
        longest: Duration,
        env: &mut Env,
    ) -> Progress {
        let outcome = match self.renewal {
            Renewal::Sent(sent) if sent == op => self.sent_answered(answer, env),
            Renewal::Reading(reading) if reading == op => self.read_answered(answer, env),
            _ => Ok(Progress::Continues),
        };
        outcome.unwrap_or_else(|error| self.attempt_failed(error, longest, env))
    }

    fn sent_answered(&mut self, answer: Answer, env: &mut Env) -> Result<Progress, StoreError> {
        match answer.into_session() {
            Ok(Some(stored)) => Ok(self.renewed(*stored, env)),
            // A 404 may be a proxy's; the read tells.
            Err(StoreError::Conflict | StoreError::Ambiguous(_) | StoreError::NotFound(_))
            | Ok(None) => {
                self.read(env);
                Ok(Progress::Continues)
            }
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, env: &mut Env) {
        let limit = CALL_LIMIT.min(self.remaining(env.now) / 4);
        let call = StoreCall::GetSession(self.id().clone());
        self.renewal = Renewal::Reading(env.call(Machine::Session, call, limit));
    }

    /// Takes the read after an attempt without a clear answer.
    fn read_answered(&mut self, answer: Answer, env: &mut Env) -> Result<Progress, StoreError> {
        let Some(found) = answer.into_session()? else {
            return Ok(Progress::Lost(Loss::SessionRevoked));
        };
        if let Some(revocation) = found.value.revoked {
            return Ok(Progress::Revoked(Box::new(revocation)));
        }
        let before = &self.stored;
        if found.value.renewals > before.value.renewals {
            // Only this agent renews, so an earlier attempt was applied.
            return Ok(self.renewed(*found, env));
        }
        // The API server itself lets the count only rise; and a version that leapt without a
        // renewal was written after a restore.
        if found.value.renewals < before.value.renewals || before.version.leapt_to(found.version) {
            return Ok(Progress::Lost(Loss::StoreRestored));
        }
        // Somebody may have changed a label, for example.
        self.stored = *found;
        env.out.push(Effect::Persist(Record::Session(self.saved())));
        Err(StoreError::Ambiguous("the renewal was not applied".into()))
    }

    fn renewed(&mut self, stored: Stored<Session>, env: &mut Env) -> Progress {
        if self.stored.version.leapt_to(stored.version) {
            // A backup was restored meanwhile, and it may lack our grants.
            return Progress::Lost(Loss::StoreRestored);
        }
        // Without a send nothing counts, least of all the answer.
        if let Some(sent) = self.first_sent.take() {
            self.keep_alive.confirm(sent);
        }
        self.stored = stored;
        self.renewal = Renewal::idle(&self.keep_alive, env);
        if std::mem::take(&mut self.failed) > 0 {
            env.out.push(Effect::WakeStreams);
        }
        // Before anything is promised from it.
        env.out.push(Effect::Persist(Record::Session(self.saved())));
        env.out.report(Report::Renewed);
        if self.renew_again {
            self.renew(env);
        }
        Progress::Renewed
    }

    fn attempt_failed(&mut self, error: StoreError, longest: Duration, env: &mut Env) -> Progress {
        self.failed = self.failed.saturating_add(1);
        self.failures.count += 1;
        let words: String = error.to_string().chars().take(256).collect();
        self.failures.last_reason = Some(words.into());
        self.failures.last_at = Some(env.wall);
        let remaining = self.remaining(env.now);
        let report = Report::RenewalFailed(self.id().clone(), error, remaining);
        env.out.report(report);
        env.out.push(Effect::WakeStreams);
        let until = env.pause(self.failed, longest);
        self.renewal = Renewal::Backoff(until);
        Progress::Failed(until)
    }
}

impl Renewal {
    fn idle(keep_alive: &KeepAlive, env: &mut Env) -> Self {
        let jitter = env.rng.fraction();
        Self::Idle {
            due: keep_alive.renew_at(jitter),
            idle_due: keep_alive.renew_idle_at(jitter),
        }
    }
}
