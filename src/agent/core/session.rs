//! The agent's one session: it begins with the first acquire, is renewed while it is needed, ends
//! after ten idle minutes or at shutdown, and is lost when its deadline passes.
//!
//! Invariant: a renewal that is answered after the deadline changes nothing. The session is lost,
//! and its name is never used again. At most one call is in flight.

mod begin;
mod config;
mod live;

use std::time::Duration;

use crate::agent::AcquireError;
use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lease::Loss;
use crate::protocol::object::{StoreError, Stored};
use crate::protocol::session::{KeepAlive, PodRef, Revocation, RevokeReason, Session};
use crate::protocol::time::{Moment, SessionTtl};
use crate::protocol::token::Revision;

use super::cooldown::Cooldown;
use super::effect::{Answer, CallId, Effect, LostSession, OpId, Record, Reply};
use super::env::Env;
use super::limits::{REQUEST_LIMIT, REQUEST_PAUSE};
use super::report::Report;
use begin::Begin;
pub(in crate::agent) use config::SessionConfig;
pub(in crate::agent) use live::Live;

/// The session, or how far it has come.
#[derive(Clone, Debug)]
pub(super) struct SessionMachine {
    config: SessionConfig,
    state: State,
    /// The claims that wait for it.
    needs: Vec<Need>,
    /// Those that it is there for, or that it failed.
    ready: Vec<Ready>,
    cooldown: Cooldown,
    /// No further session begins.
    is_draining: bool,
    /// No further renewal begins.
    is_stopped: bool,
    /// The requests to answer once no renewal is in flight.
    stopping: Vec<CallId>,
    /// A session that was lost, with what depends on it still to be ended.
    lost: Option<LostSession>,
    /// All answers to needs.
    #[cfg(test)]
    pub(super) answered: Vec<Ready>,
}

#[derive(Clone, Debug)]
enum State {
    None,
    Beginning(Begin),
    Live(Box<Live>),
}

#[derive(Clone, Debug)]
struct Need {
    /// The lock whose claim needs it.
    resource: Resource,
    until: Moment,
}

/// The answer to a need.
pub(super) type Ready = (Resource, Result<(), AcquireError>);

impl SessionMachine {
    pub(super) fn new(config: SessionConfig) -> Self {
        Self {
            config,
            state: State::None,
            needs: Vec::new(),
            ready: Vec::new(),
            cooldown: Cooldown::default(),
            is_draining: false,
            is_stopped: false,
            stopping: Vec::new(),
            lost: None,
            #[cfg(test)]
            answered: Vec::new(),
        }
    }

    /// Returns the pod that the agent acts for.
    pub(super) const fn pod(&self) -> &PodRef {
        &self.config.pod
    }

    /// Returns the TTL of its sessions.
    pub(super) const fn session_ttl(&self) -> SessionTtl {
        self.config.ttl
    }

    /// Returns the same as a time.
    pub(super) const fn ttl(&self) -> Duration {
        self.config.ttl.get()
    }

    /// Takes the answers to needs.
    pub(super) fn take_ready(&mut self) -> Vec<Ready> {
        #[cfg(test)]
        self.answered.extend(self.ready.iter().cloned());
        std::mem::take(&mut self.ready)
    }

    /// Takes a session that was lost.
    pub(super) const fn take_lost(&mut self) -> Option<LostSession> {
        self.lost.take()
    }

    /// Returns the session, unless it is known to be lost. It is valid only before its deadline.
    pub(super) const fn live(&self) -> Option<&Live> {
        match &self.state {
            State::Live(live) => Some(live),
            State::None | State::Beginning(_) => None,
        }
    }

    /// Returns whether no further session begins.
    pub(super) const fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(super) const fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Answers with a session that has at least half of its TTL left. It is renewed or begun first
    /// if need be. `listed` is the store's revision, if a list has just returned it.
    pub(super) fn need(&mut self, resource: Resource, listed: Option<Revision>, env: &mut Env) {
        self.expire(env);
        if self.is_stopped {
            return self.ready.push((resource, Err(AcquireError::ShuttingDown)));
        }
        let until = env.now.after(REQUEST_LIMIT);
        self.needs.push(Need { resource, until });
        match &mut self.state {
            State::None => self.begin(listed, env),
            State::Beginning(_) => {}
            // Only for the first: callers that come again and again must not add up to a storm.
            State::Live(live) if live.is_stale(env.now) => {
                if self.needs.len() == 1 {
                    live.hurry(REQUEST_PAUSE, env);
                }
            }
            State::Live(_) => self.answer_needs_if_fresh(env),
        }
    }

    /// Renews the session, to find out whether it was revoked.
    pub(super) fn renew_now(&mut self, session: &SessionId, env: &mut Env) {
        self.expire(env);
        if let State::Live(live) = &mut self.state
            && live.id() == session
            && !self.is_stopped
        {
            live.renew_now(env);
        }
    }

    /// Takes the session out, to end it; with its call that is in flight.
    pub(super) fn take(&mut self, env: &mut Env) -> Option<(Session, Option<OpId>)> {
        self.answer_needs(&Err(AcquireError::ShuttingDown));
        match std::mem::replace(&mut self.state, State::None) {
            State::None => None,
            State::Beginning(begin) => begin.session(),
            State::Live(live) => {
                env.out.push(Effect::Persist(Record::SessionOver));
                Some((live.stored().value.clone(), live.in_flight()))
            }
        }
    }

    /// Begins no further renewal; answers once none is in flight.
    pub(super) fn stop_renewing(&mut self, call: CallId, env: &mut Env) {
        self.is_stopped = true;
        self.stopping.push(call);
        self.answer_needs(&Err(AcquireError::ShuttingDown));
        if let State::Live(live) = &mut self.state {
            live.renew_no_more();
        }
        self.answer_stop(env);
    }

    /// Continues with a session that an earlier process began, and that was renewed since.
    pub(super) fn adopt(
        &mut self,
        stored: Stored<Session>,
        keep_alive: KeepAlive,
        listed: Revision,
        env: &mut Env,
    ) {
        let live = Live::new(stored, keep_alive, listed, env);
        self.state = State::Live(Box::new(live));
    }

    /// Loses the session. Waiting callers get the next one.
    pub(super) fn lose(&mut self, loss: Loss, env: &mut Env) {
        let State::Live(live) = &self.state else {
            return;
        };
        self.lost = Some(LostSession {
            session: live.stored().value.clone(),
            loss,
            in_flight: live.in_flight(),
        });
        self.state = State::None;
        if !self.needs.is_empty() {
            self.begin(None, env);
        }
    }

    /// Begins another session, if one is being created that may be from before a restore. Returns that,
    /// with its call that is in flight.
    pub(super) fn restart(&mut self, env: &mut Env) -> Option<(Session, Option<OpId>)> {
        let State::Beginning(begin) = &self.state else {
            return None;
        };
        let before = begin.session()?;
        self.state = State::None;
        if !self.needs.is_empty() {
            self.begin(None, env);
        }
        Some(before)
    }

    /// Does what is due.
    pub(super) fn timer(&mut self, env: &mut Env) {
        self.expire(env);
        match &mut self.state {
            State::Beginning(begin) => begin.timer(env),
            State::Live(live) if !self.is_stopped && live.is_due(env) => live.renew(env),
            State::None | State::Live(_) => {}
        }
    }

    /// Returns whether it is due to be ended, because no lock has needed it for long: then it is
    /// ended instead of renewed.
    pub(super) fn is_idle_end_due(&self, env: &Env) -> bool {
        let (State::Live(live), Some(since)) = (&self.state, env.idle_since) else {
            return false;
        };
        let is_idle = env.now.since(since) >= self.config.idle_after;
        is_idle && self.needs.is_empty() && !self.is_stopped && live.is_due(env)
    }

    /// Returns when `timer` has something to do.
    pub(super) fn timeout(&self, is_idle: bool) -> Option<Moment> {
        match &self.state {
            State::None => None,
            State::Beginning(begin) => begin.timeout(),
            State::Live(live) => {
                let due = live.due(is_idle).filter(|_| !self.is_stopped);
                let deadline = live.valid_until();
                Some(due.map_or(deadline, |due| due.min(deadline)))
            }
        }
    }

    /// Takes the answer to its call.
    pub(super) fn answered(&mut self, op: OpId, answer: Answer, env: &mut Env) {
        self.expire(env);
        let longest = self.longest_pause();
        match &mut self.state {
            State::Beginning(begin) => {
                let progress = begin.answered(op, answer, &self.config, env);
                self.beginning_answered(progress, env);
            }
            State::Live(live) => {
                let progress = live.answered(op, answer, longest, env);
                self.renewal_answered(progress, env);
            }
            // It belongs to a session that is over.
            State::None => {}
        }
        self.answer_stop(env);
    }

    /// Loses the session once its deadline has passed: an app may know of the loss already.
    pub(super) fn expire(&mut self, env: &mut Env) {
        let Some(live) = self.live().filter(|live| env.now >= live.valid_until()) else {
            return;
        };
        if live.in_flight().is_some() {
            env.out.report(Report::RenewalLost);
        }
        self.lose(Loss::SessionExpired, env);
    }

    fn begin(&mut self, listed: Option<Revision>, env: &mut Env) {
        let may_begin = if self.is_draining {
            Err(AcquireError::ShuttingDown)
        } else {
            self.cooldown.check(env.now)
        };
        match may_begin {
            Ok(()) => self.state = State::Beginning(Begin::new(listed, &self.config, env)),
            Err(error) => self.answer_needs(&Err(error)),
        }
    }

    fn beginning_answered(&mut self, progress: begin::Progress, env: &mut Env) {
        match progress {
            begin::Progress::Continues => {}
            begin::Progress::Retries(at, error) => {
                self.refuse_late_needs(at, &error.into());
                if self.needs.is_empty() {
                    self.state = State::None;
                }
            }
            begin::Progress::Failed(error) => {
                self.state = State::None;
                self.answer_needs(&Err(error));
            }
            begin::Progress::Revoked(revocation) => {
                self.state = State::None;
                self.record_revocation(&revocation, env);
                if !self.needs.is_empty() {
                    self.begin(None, env);
                }
            }
            begin::Progress::Begun(live) => {
                self.state = State::Live(live);
                // Before anything is promised from it.
                env.out.push(Effect::Persist(Record::Session));
                self.answer_needs_if_fresh(env);
            }
        }
    }

    fn renewal_answered(&mut self, progress: live::Progress, env: &mut Env) {
        match progress {
            live::Progress::Continues => {}
            live::Progress::Renewed => {
                self.cooldown.record_renewal();
                self.answer_needs_if_fresh(env);
            }
            live::Progress::Failed(until) => {
                let error = StoreError::Unavailable("the session could not be renewed".into());
                self.refuse_late_needs(until, &error.into());
            }
            live::Progress::Lost(loss) => {
                env.out.report(Report::RenewalLost);
                self.lose(loss, env);
            }
            live::Progress::Revoked(revocation) => {
                self.record_revocation(&revocation, env);
                env.out.report(Report::RenewalLost);
                self.lose(Loss::SessionRevoked, env);
            }
        }
    }

    /// Pauses before the next session, if this one was revoked because the pod was reported as ended.
    fn record_revocation(&mut self, revocation: &Revocation, env: &mut Env) {
        if revocation.reason == RevokeReason::PodEnded {
            self.cooldown.record_report(env.now, self.config.ttl);
            env.out
                .report(Report::PodReportedEnded(revocation.by.clone()));
        }
    }

    /// Returns the bound of the pause after a failed renewal.
    fn longest_pause(&self) -> Duration {
        if self.needs.is_empty() {
            self.config.ttl.get() / 10
        } else {
            REQUEST_PAUSE
        }
    }

    /// Answers the waiting callers, if the session has at least half of its TTL left. A renewal that was
    /// first sent long ago leaves less: then it is renewed once more.
    fn answer_needs_if_fresh(&mut self, env: &mut Env) {
        let State::Live(live) = &mut self.state else {
            return;
        };
        if self.needs.is_empty() {
            return;
        }
        if live.is_stale(env.now) {
            return live.hurry(REQUEST_PAUSE, env);
        }
        self.answer_needs(&Ok(()));
    }

    fn answer_needs(&mut self, answer: &Result<(), AcquireError>) {
        let needs = self.needs.drain(..);
        self.ready
            .extend(needs.map(|need| (need.resource, answer.clone())));
    }

    /// Refuses callers that will have waited too long when the next attempt is made.
    fn refuse_late_needs(&mut self, next: Moment, error: &AcquireError) {
        let late = self.needs.extract_if(.., |need| next >= need.until);
        self.ready
            .extend(late.map(|need| (need.resource, Err(error.clone()))));
    }

    fn answer_stop(&mut self, env: &mut Env) {
        let in_flight = self.live().and_then(Live::in_flight);
        if in_flight.is_none() {
            for call in self.stopping.drain(..) {
                env.out.push(Effect::Reply(call, Reply::Done));
            }
        }
    }
}
