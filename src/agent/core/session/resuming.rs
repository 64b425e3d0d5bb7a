//! The session of an earlier process, while it is not known whether it continues: it is read, renewed
//! once, and what it holds is listed.
//!
//! Invariant: nothing is confirmed before one renewal by compare-and-swap on the version in the state
//! file was *answered* with success. A newer version that is read proves nothing: an earlier renewal of
//! the crashed process or another client may have written it. All of this must succeed before the last
//! deadline that apps were given. Otherwise the session is left to expire.
//!
//! Until then a renewal of a lease is refused as resuming, a release is accepted, a request for a lock
//! waits for a few seconds, and a lease that had ended is answered as it ended.

use std::time::Duration;

use crate::agent::api::{AcquireError, AcquireRequest};
use crate::agent::core::discard::DiscardReason;
use crate::agent::core::effect::{Answer, CallId, Effect, OpId, Record, Reply, StoreCall};
use crate::agent::core::env::{Env, Machine};
use crate::agent::core::limits::{CALL_LIMIT, REQUEST_LIMIT, REQUEST_PAUSE};
use crate::agent::core::report::ResumptionReport;
use crate::agent::core::saved::{SavedSession, SavedState};
use crate::protocol::ids::SessionId;
use crate::protocol::key::SessionKey;
use crate::protocol::lock::Lock;
use crate::protocol::object::{Page, StoreError, Stored};
use crate::protocol::session::{KeepAlive, Session};
use crate::protocol::time::Moment;

/// The shortest time limit of a call, however near the deadline is.
const SHORTEST_CALL: Duration = Duration::from_millis(50);

/// A session that may continue.
#[derive(Clone, Debug)]
pub(in crate::agent::core) struct Resuming {
    pub(in crate::agent::core) saved: SavedState,
    session: SavedSession,
    stage: Stage,
    step: Step,
    failures: u32,
    last_error: Option<StoreError>,
    deferred: Vec<Deferred>,
    /// The agent stops: no further call is made.
    is_halted: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    Reading,
    Renewing(Box<Renewal>),
    /// Listing what the renewed session holds.
    Listing(Box<Renewed>),
}

/// The one renewal that all depends on.
#[derive(Clone, Debug)]
struct Renewal {
    found: Stored<Session>,
    next: Session,
    /// Before the first attempt was sent: whichever is applied, none was sent earlier.
    sent: Moment,
}

/// A session that was renewed.
#[derive(Clone, Debug)]
pub(super) struct Renewed {
    pub(super) stored: Stored<Session>,
    pub(super) keep_alive: KeepAlive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Call(OpId),
    Pause(Moment),
}

/// A request for a lock that waits until it is known which leases continue.
#[derive(Clone, Debug)]
pub(in crate::agent::core) struct Deferred {
    pub(in crate::agent::core) call: CallId,
    pub(in crate::agent::core) request: AcquireRequest,
    pub(in crate::agent::core) arrived: Moment,
    until: Moment,
}

/// A resumption that is over.
#[derive(Clone, Debug)]
pub(in crate::agent::core) struct Resumption {
    pub(in crate::agent::core) end: ResumptionEnd,
    /// What the earlier process left beside the session.
    pub(in crate::agent::core) saved: SavedState,
    pub(in crate::agent::core) session: SessionId,
    /// The deadline that apps were told at most.
    pub(in crate::agent::core) promised_until: Moment,
    /// The requests that waited for it.
    pub(in crate::agent::core) deferred: Vec<Deferred>,
}

/// How a resumption ended.
#[derive(Clone, Debug)]
pub(in crate::agent::core) enum ResumptionEnd {
    /// The session continues, and holds these locks.
    Continues(SessionKey, Box<Page<Lock>>),
    /// It does not.
    Discarded(DiscardReason),
}

/// What an answer led to.
pub(super) enum Progress {
    /// The next call was sent, or follows.
    Continues,
    /// The session does not continue.
    Discarded(DiscardReason),
    /// The session continues, and holds these locks.
    Resumed(Box<Renewed>, Box<Page<Lock>>),
}

impl Resuming {
    /// Begins with a read of the session.
    pub(super) fn new(saved: SavedState, session: SavedSession, env: &mut Env) -> Self {
        let mut resuming = Self {
            saved,
            session,
            stage: Stage::Reading,
            step: Step::Pause(env.now),
            failures: 0,
            last_error: None,
            deferred: Vec::new(),
            is_halted: false,
        };
        resuming.timer(env);
        resuming
    }

    /// Returns the deadline that apps were told at most.
    pub(super) const fn valid_until(&self) -> Moment {
        self.session.valid_until
    }

    /// Returns the renewal that is in flight.
    pub(super) const fn renewal_in_flight(&self) -> Option<OpId> {
        match (&self.stage, self.step) {
            (Stage::Renewing(_), Step::Call(op)) => Some(op),
            _ => None,
        }
    }

    /// Makes no further call.
    pub(super) const fn halt(&mut self) {
        self.is_halted = true;
    }

    /// Takes a request that waits until it is known which leases continue.
    pub(in crate::agent::core) fn defer(
        &mut self,
        call: CallId,
        request: AcquireRequest,
        arrived: Moment,
        now: Moment,
    ) {
        self.deferred.push(Deferred {
            call,
            request,
            arrived,
            until: now.after(REQUEST_LIMIT),
        });
    }

    /// The client of a request that waits hung up. Returns whether there is such a request.
    pub(in crate::agent::core) fn hang_up(&mut self, call: CallId) -> bool {
        let before = self.deferred.len();
        self.deferred.retain(|deferred| deferred.call != call);
        self.deferred.len() < before
    }

    /// Takes the requests that wait.
    pub(in crate::agent::core) fn take_deferred(&mut self) -> Vec<Deferred> {
        std::mem::take(&mut self.deferred)
    }

    /// Returns what is left of it when it is over.
    pub(super) fn into_end(self, end: ResumptionEnd) -> Resumption {
        Resumption {
            end,
            promised_until: self.valid_until(),
            session: self.session.id,
            saved: self.saved,
            deferred: self.deferred,
        }
    }

    /// Returns when `timer` has something to do.
    pub(super) fn timeout(&self) -> Moment {
        let refusals = self.deferred.iter().map(|deferred| deferred.until);
        let next = match self.step {
            Step::Pause(until) if !self.is_halted => Some(until),
            Step::Call(_) | Step::Pause(_) => None,
        };
        let next = refusals.chain(next).min();
        next.map_or(self.valid_until(), |next| next.min(self.valid_until()))
    }

    /// Makes the attempt that is due, and refuses requests that have waited for too long.
    pub(super) fn timer(&mut self, env: &mut Env) {
        let late = self
            .deferred
            .extract_if(.., |deferred| env.now >= deferred.until);
        for deferred in late {
            let refused = Reply::Acquired(Box::new(Err(AcquireError::Resuming)));
            env.out.push(Effect::Reply(deferred.call, refused));
        }
        if let Step::Pause(until) = self.step
            && env.now >= until
        {
            self.attempt(env);
        }
    }

    fn begin_stage(&mut self, stage: Stage, env: &mut Env) {
        self.stage = stage;
        self.failures = 0;
        self.attempt(env);
    }

    fn attempt(&mut self, env: &mut Env) {
        if self.is_halted || env.now >= self.valid_until() {
            self.step = Step::Pause(env.now);
            return;
        }
        let id = self.session.id.clone();
        let left = self.valid_until().since(env.now);
        let (call, limit) = match &self.stage {
            Stage::Reading => (StoreCall::GetSession(id), left / 4),
            Stage::Renewing(renewal) => {
                let (found, next) = (renewal.found.clone(), renewal.next.clone());
                let call = StoreCall::UpdateSession(Box::new(found), Box::new(next));
                (call, left / 4)
            }
            // Nothing follows it, and it may have thousands of locks to tell of.
            Stage::Listing(_) => (StoreCall::ListHeld(id), left),
        };
        let limit = limit.clamp(SHORTEST_CALL, CALL_LIMIT);
        let not_after = Some(self.valid_until());
        self.step = Step::Call(env.call_before(Machine::Session, call, limit, not_after));
    }

    /// Takes the answer to its call.
    pub(super) fn answered(&mut self, op: OpId, answer: Answer, env: &mut Env) -> Progress {
        if self.step != Step::Call(op) {
            return Progress::Continues;
        }
        let error = match (&self.stage, answer) {
            (Stage::Reading, Answer::Session(found)) => {
                return self.found(found.map(|found| *found), env);
            }
            (Stage::Renewing(renewal), Answer::Session(Some(stored))) => {
                let renewal = renewal.clone();
                return self.renewed(&renewal, *stored, env);
            }
            (Stage::Listing(renewed), Answer::Page(page)) => {
                return Progress::Resumed(renewed.clone(), page);
            }
            (_, Answer::WentBack(_)) => return Progress::Discarded(DiscardReason::StoreRestored),
            (_, Answer::Failed(error)) => error,
            _ => StoreError::no_result(),
        };
        match error {
            StoreError::Conflict => Progress::Discarded(DiscardReason::Moved),
            StoreError::NotFound(_) => Progress::Discarded(DiscardReason::Revoked),
            error => {
                env.out.report(ResumptionReport::CallFailed(error.clone()));
                self.last_error = Some(error);
                self.step = Step::Pause(env.pause(self.failures, REQUEST_PAUSE));
                self.failures = self.failures.saturating_add(1);
                Progress::Continues
            }
        }
    }

    fn found(&mut self, found: Option<Stored<Session>>, env: &mut Env) -> Progress {
        let Some(found) = found.filter(|found| found.value.revoked.is_none()) else {
            return Progress::Discarded(DiscardReason::Revoked);
        };
        if found.version != self.session.version {
            // Perhaps only by a renewal that was on its way when the process died; but then what was
            // told since is not on file either.
            return Progress::Discarded(DiscardReason::Moved);
        }
        let failures = found.value.failures.clone();
        let Ok(next) = found.value.renewed(env.wall, failures) else {
            return Progress::Discarded(DiscardReason::Revoked);
        };
        // Closes the race with a revocation: both write on the version that they read, and one succeeds.
        // An unanswered attempt is repeated on the same version, so one that was applied makes the next
        // one fail: it cannot be told from another's.
        let sent = env.now;
        let renewal = Renewal { found, next, sent };
        self.begin_stage(Stage::Renewing(Box::new(renewal)), env);
        Progress::Continues
    }

    fn renewed(&mut self, renewal: &Renewal, stored: Stored<Session>, env: &mut Env) -> Progress {
        if renewal.found.version.leapt_to(stored.version) {
            return Progress::Discarded(DiscardReason::StoreRestored);
        }
        let keep_alive = KeepAlive::begun(renewal.sent, renewal.found.value.ttl);
        let session = SavedSession::of(&stored, keep_alive.valid_until());
        env.out.push(Effect::Persist(Record::Session(session)));
        let renewed = Renewed { stored, keep_alive };
        self.begin_stage(Stage::Listing(Box::new(renewed)), env);
        Progress::Continues
    }

    /// Returns why it does not continue when its deadline has passed.
    pub(super) fn why_too_late(&self) -> DiscardReason {
        match &self.last_error {
            Some(error) => DiscardReason::NoAnswer(error.to_string()),
            None if matches!(self.step, Step::Call(_)) => {
                DiscardReason::NoAnswer("none came".into())
            }
            None => DiscardReason::DeadlinePassed,
        }
    }
}
