//! The agent's one session: it begins with the first acquire or continues an earlier process' one, is
//! renewed while it is needed, ends after ten idle minutes or at shutdown, and is lost when its deadline
//! passes.
//!
//! Invariant: a renewal that is answered after the deadline changes nothing. The session is lost,
//! and its name is never used again. At most one call is in flight.

mod begin;
mod config;
mod live;
mod needs;
mod resuming;

use std::time::Duration;

use crate::agent::api::{AcquireError, LeaseError};
use crate::protocol::ids::{LeaseId, Resource, SessionId};
use crate::protocol::lease::Loss;
use crate::protocol::object::StoreError;
use crate::protocol::session::{PodRef, Revocation, RevokeReason, Session};
use crate::protocol::time::{Moment, SessionTtl};
use crate::protocol::token::Revision;

use super::cooldown::Cooldown;
use super::discard::DiscardReason;
use super::effect::{Answer, CallId, Effect, LostSession, OpId, Record, Reply};
use super::env::Env;
use super::history::EndedLease;
use super::limits::{REQUEST_LIMIT, REQUEST_PAUSE};
use super::report::Report;
use super::saved::{SavedSession, SavedState};
use begin::Begin;
pub(in crate::agent) use config::SessionConfig;
pub(in crate::agent) use live::Live;
use needs::{Needs, Ready};
pub(super) use resuming::{Resuming, Resumption, ResumptionEnd};

/// The session, or how far it has come.
#[derive(Clone, Debug)]
pub(super) struct SessionMachine {
    config: SessionConfig,
    state: State,
    /// The claims that wait for it.
    pub(super) needs: Needs,
    cooldown: Cooldown,
    /// No further session begins.
    is_draining: bool,
    /// No further renewal begins.
    is_stopped: bool,
    /// The requests to answer once no renewal is in flight.
    stopping: Vec<CallId>,
    /// A session that was lost, with what depends on it still to be ended.
    lost: Option<LostSession>,
    /// The end of a resumption, with what depends on it still to be done.
    resumption: Option<Resumption>,
}

#[derive(Clone, Debug)]
enum State {
    None,
    Resuming(Box<Resuming>),
    Beginning(Begin),
    Live(Box<Live>),
}

impl SessionMachine {
    pub(super) fn new(config: SessionConfig) -> Self {
        Self {
            config,
            state: State::None,
            needs: Needs::default(),
            cooldown: Cooldown::default(),
            is_draining: false,
            is_stopped: false,
            stopping: Vec::new(),
            lost: None,
            resumption: None,
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

    /// Returns the time by which routine work is paced.
    pub(super) fn period(&self) -> Duration {
        self.config.ttl.period()
    }

    /// Takes the answers to needs.
    pub(super) fn take_ready(&mut self) -> Vec<Ready> {
        self.needs.take_ready()
    }

    /// Takes a resumption that is over.
    pub(super) const fn take_resumption(&mut self) -> Option<Resumption> {
        self.resumption.take()
    }

    /// Returns whether it is not known yet whether an earlier process' session continues.
    pub(super) const fn is_resuming(&self) -> bool {
        matches!(self.state, State::Resuming(_))
    }

    /// Returns until when apps may believe what an earlier process promised them, while it is not known
    /// which of its leases continue.
    pub(super) fn unresumed_until(&self) -> Option<Moment> {
        match &self.state {
            State::Resuming(resuming) => Some(resuming.valid_until()),
            State::None | State::Beginning(_) | State::Live(_) => None,
        }
    }

    /// Returns the resumption, for requests that wait for it.
    pub(super) fn resuming_mut(&mut self) -> Option<&mut Resuming> {
        match &mut self.state {
            State::Resuming(resuming) => Some(resuming),
            State::None | State::Beginning(_) | State::Live(_) => None,
        }
    }

    /// Returns why there is nothing to say of a lease that is not served and did not end.
    pub(super) fn unserved(&self, lease: &LeaseId) -> LeaseError {
        match &self.state {
            State::Resuming(resuming) if resuming.saved.leases.contains_key(lease) => {
                LeaseError::Resuming
            }
            _ => LeaseError::Unknown,
        }
    }

    /// An app ends a lease of which it is not known whether it continues. Returns its end; `None` if it is
    /// no such lease.
    pub(super) fn end_unresumed(&mut self, lease: &LeaseId) -> Option<EndedLease> {
        self.resuming_mut()?.saved.end_by_app(lease)
    }

    /// Takes a session that was lost.
    pub(super) const fn take_lost(&mut self) -> Option<LostSession> {
        self.lost.take()
    }

    /// Returns the session, unless it is known to be lost. It is valid only before its deadline.
    pub(super) const fn live(&self) -> Option<&Live> {
        match &self.state {
            State::Live(live) => Some(live),
            State::None | State::Resuming(_) | State::Beginning(_) => None,
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
            return self.needs.refuse(resource, AcquireError::ShuttingDown);
        }
        self.needs.add(resource, env.now.after(REQUEST_LIMIT));
        match &mut self.state {
            State::None => self.begin(listed, env),
            State::Resuming(_) | State::Beginning(_) => {}
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
        self.needs.answer(&Err(AcquireError::ShuttingDown));
        match std::mem::replace(&mut self.state, State::None) {
            State::None => None,
            State::Resuming(mut resuming) => {
                // What is on file stays there for the next process.
                resuming.halt();
                self.state = State::Resuming(resuming);
                None
            }
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
        self.needs.answer(&Err(AcquireError::ShuttingDown));
        match &mut self.state {
            State::Live(live) => live.renew_no_more(),
            State::Resuming(resuming) => resuming.halt(),
            State::None | State::Beginning(_) => {}
        }
        self.answer_stop(env);
    }

    /// Begins to find out whether an earlier process' session continues.
    pub(super) fn resume(&mut self, saved: SavedState, session: SavedSession, env: &mut Env) {
        let resuming = Resuming::new(saved, session, env);
        self.state = State::Resuming(Box::new(resuming));
        self.expire(env);
    }

    /// Loses the session. Waiting callers get the next one.
    pub(super) fn lose(&mut self, loss: Loss, env: &mut Env) {
        if loss == Loss::StoreRestored {
            self.discard(DiscardReason::StoreRestored);
        }
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

    /// Begins another session, if one is being created or resumed that is from before a restore. Returns
    /// the one that is being created, with its call that is in flight.
    pub(super) fn restart(&mut self, env: &mut Env) -> Option<(Session, Option<OpId>)> {
        self.discard(DiscardReason::StoreRestored);
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
    pub(super) fn timer(&mut self, is_idle: bool, env: &mut Env) {
        self.expire(env);
        match &mut self.state {
            State::Resuming(resuming) => resuming.timer(env),
            State::Beginning(begin) => begin.timer(env),
            State::Live(live) if !self.is_stopped && live.is_due(is_idle, env.now) => {
                live.renew(env);
            }
            State::None | State::Live(_) => {}
        }
    }

    /// Returns whether it is due to be ended, because no lock has needed it for long: then it is
    /// ended instead of renewed.
    pub(super) fn is_idle_end_due(&self, idle_since: Moment, now: Moment) -> bool {
        let State::Live(live) = &self.state else {
            return false;
        };
        let is_unneeded = now.since(idle_since) >= self.config.idle_after && self.needs.is_empty();
        is_unneeded && !self.is_stopped && live.is_due(true, now)
    }

    /// Returns when `timer` has something to do.
    pub(super) fn timeout(&self, is_idle: bool) -> Option<Moment> {
        match &self.state {
            State::None => None,
            State::Resuming(resuming) => Some(resuming.timeout()),
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
            State::Resuming(resuming) => {
                let progress = resuming.answered(op, answer, env);
                self.resumption_answered(progress, env);
            }
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
        if let State::Resuming(resuming) = &self.state
            && env.now >= resuming.valid_until()
        {
            self.discard(resuming.why_too_late());
        }
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
            Err(error) => self.needs.answer(&Err(error)),
        }
    }

    fn resumption_answered(&mut self, progress: resuming::Progress, env: &mut Env) {
        match progress {
            resuming::Progress::Continues => {}
            resuming::Progress::Discarded(reason) => self.discard(reason),
            resuming::Progress::Resumed(renewed, page) => {
                let live = Live::new(renewed.stored, renewed.keep_alive, page.revision, env);
                let end = ResumptionEnd::Continues(live.key(), page);
                self.end_resumption(end, State::Live(Box::new(live)));
            }
        }
    }

    /// Does not continue the session of an earlier process.
    fn discard(&mut self, reason: DiscardReason) {
        if self.is_resuming() {
            self.end_resumption(ResumptionEnd::Discarded(reason), State::None);
        }
    }

    /// No claim needs the session before: requests wait until it is known what continues.
    fn end_resumption(&mut self, end: ResumptionEnd, next: State) {
        let before = std::mem::replace(&mut self.state, next);
        if let State::Resuming(resuming) = before {
            self.resumption = Some(resuming.into_end(end));
        }
    }

    fn beginning_answered(&mut self, progress: begin::Progress, env: &mut Env) {
        match progress {
            begin::Progress::Continues => {}
            begin::Progress::Retries(at, error) => {
                self.needs.refuse_late(at, &error.into());
                if self.needs.is_empty() {
                    self.state = State::None;
                }
            }
            begin::Progress::Failed(error) => {
                self.state = State::None;
                self.needs.answer(&Err(error));
            }
            begin::Progress::Revoked(revocation) => {
                self.state = State::None;
                self.record_revocation(&revocation, env);
                if !self.needs.is_empty() {
                    self.begin(None, env);
                }
            }
            begin::Progress::Begun(live) => {
                let session = live.saved();
                self.state = State::Live(live);
                // Before anything is promised from it.
                env.out.push(Effect::Persist(Record::Session(session)));
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
                self.needs.refuse_late(until, &error.into());
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
            self.period() / 10
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
        self.needs.answer(&Ok(()));
    }

    fn answer_stop(&mut self, env: &mut Env) {
        let in_flight = match &self.state {
            State::Live(live) => live.in_flight(),
            State::Resuming(resuming) => resuming.renewal_in_flight(),
            State::None | State::Beginning(_) => None,
        };
        if in_flight.is_none() {
            for call in self.stopping.drain(..) {
                env.out.push(Effect::Reply(call, Reply::Done));
            }
        }
    }
}
