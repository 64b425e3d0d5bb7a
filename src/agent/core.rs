//! The agent's decisions, as a pure state machine: inputs and the time go in, effects come out, as in
//! quinn-proto. It imports only `std`, `protocol` and the agent's `api`.
//!
//! The core has no I/O, no async, no clock, no randomness and no logging of its own. The driver
//! executes its effects, feeds the answers back and decides nothing. Each machine has at most one
//! call in flight, so a write is never repeated before its answer is known or counts as unknown.

pub(super) mod acquiring;
mod advance;
pub(super) mod answers;
pub(super) mod backoff;
pub(super) mod begun;
mod callers;
mod claim;
mod config;
mod cooldown;
mod decision;
pub(super) mod discard;
pub(super) mod effect;
mod ending_sessions;
mod env;
mod failure;
pub(super) mod free_locks;
pub(super) mod gone;
mod granted;
pub(super) mod held;
pub(super) mod history;
mod holder;
mod horizon;
mod judgement;
pub(super) mod leases;
pub(super) mod leftover;
mod limits;
mod lost;
mod next;
pub(super) mod observed;
pub(super) mod own;
pub(super) mod peers;
pub(super) mod release;
mod releases;
pub(super) mod reply;
pub(super) mod report;
mod requests;
pub(super) mod resume_plan;
mod resumed;
pub(super) mod saved;
pub(super) mod session;
pub(super) mod stream;
pub(super) mod warm;
mod warm_poll;
mod watch;
mod watching;

use std::collections::BTreeSet;

use crate::protocol::ids::Resource;
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::object::{StoreError, Stored};
use crate::protocol::session::Session;
use crate::protocol::time::Moment;
use crate::protocol::token::{Revision, StoreWentBack};

use acquiring::Acquiring;
pub(super) use config::CoreConfig;
use effect::{Answer, CallId, Effect, Input, LostSession, OpId, Reply, WatchId, WatchInput};
use ending_sessions::{EndingSession, EndingSessions};
pub(super) use env::Cx;
use env::{Env, InFlight, Machine, Outbox};
use free_locks::FreeLocks;
use history::History;
use horizon::Horizon;
pub(super) use horizon::SeenAtSend;
use leases::Leases;
pub(super) use limits::{CALL_LIMIT, REQUEST_LIMIT};
use own::Own;
use peers::Peers;
use releases::Releases;
use report::Report;
use saved::SavedState;
use session::{Live, SessionMachine};
use watching::Watching;

/// Decides about the session, its watch, claims, leases, warm grants and grants that are over, and has
/// what was observed of the store.
#[derive(Clone, Debug)]
pub(super) struct Core {
    session: SessionMachine,
    /// Sessions that are over and not revoked yet.
    ending: EndingSessions,
    watching: Watching,
    horizon: Horizon,
    /// Leases and warm grants.
    pub(super) own: Own,
    /// What callers want.
    pub(super) acquiring: Acquiring,
    /// Since when there is no lease, warm grant, caller or release, as of the last [`Core::settle`].
    /// `None` while there is one, and while an earlier process' leases are resumed.
    idle_since: Option<Moment>,
    /// Locks whose callers may have something to do.
    changed: BTreeSet<Resource>,
    /// Grants that are over.
    pub(super) releases: Releases,
    /// Other pods' sessions.
    pub(super) peers: Peers,
    /// Free locks as last written.
    pub(super) free_locks: FreeLocks,
    /// Ends of leases and answers to requests.
    pub(super) history: History,
    out: Outbox,
}

impl Core {
    /// Returns a core that has seen nothing yet.
    pub(super) fn new(config: CoreConfig) -> Self {
        Self {
            horizon: Horizon::new(config.token_floor),
            watching: Watching::new(config.session.ttl.period()),
            session: SessionMachine::new(config.session),
            ending: EndingSessions::default(),
            own: Own::default(),
            acquiring: Acquiring::new(config.acquire),
            idle_since: Some(Moment::default()),
            changed: BTreeSet::new(),
            releases: Releases::default(),
            peers: Peers::default(),
            free_locks: FreeLocks::default(),
            history: History::default(),
            out: Outbox::default(),
        }
    }

    /// Takes an input. Its effects are then to be polled.
    pub(super) fn handle(&mut self, cx: &mut Cx, input: Input) {
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        match input {
            Input::Acquire(call, request, arrived) => {
                requests::acquire(&mut self.leases(cx), call, *request, arrived);
            }
            Input::HangUp(call) => requests::hang_up(&mut self.leases(cx), call),
            Input::Undelivered(lease) => requests::undelivered(&mut self.leases(cx), &lease),
            Input::Drain => {
                self.session.drain();
                requests::drain(&mut self.leases(cx));
            }
            Input::EndSession(request) => self.end_session(cx, Some(request)),
            Input::StopRenewing(request) => self.session.stop_renewing(request, env),
            Input::Answer(op, answer) => self.answered(cx, op, answer),
            Input::Watch(id, input) => self.watch_happened(cx, id, input),
            Input::Timer => self.timer(cx),
        }
        self.settle(cx);
    }

    /// Does what a step has made possible: for callers whose lock or session changed, and for what
    /// depends on a session that was lost. To be called after each step.
    pub(super) fn settle(&mut self, cx: &mut Cx) {
        loop {
            self.follow_session(cx);
            let ready = self.session.take_ready();
            let changed = std::mem::take(&mut self.changed);
            if ready.is_empty() && changed.is_empty() {
                break;
            }
            for (resource, session) in ready {
                advance::session_ready(&mut self.unchecked_leases(cx), &resource, session);
            }
            for resource in changed {
                advance::run(&mut self.unchecked_leases(cx), &resource);
            }
        }
        let is_idle = self.load() == 0 && self.own.warm_len() == 0 && !self.is_resuming();
        self.idle_since = is_idle.then(|| self.idle_since.unwrap_or(cx.now));
    }

    /// Returns the next effect to execute, in order.
    pub(super) fn poll_effect(&mut self) -> Option<Effect> {
        self.out.poll()
    }

    /// Returns when [`Input::Timer`] is due, if nothing else comes before.
    pub(super) fn poll_timeout(&self) -> Option<Moment> {
        let session = self.session.timeout(self.idle_since.is_some());
        let watch = self.watching.timeout();
        let others = session
            .into_iter()
            .chain(watch)
            .chain(self.out.next_overdue());
        let others = others.chain(self.releases.timeout());
        let own = self.own.next_end().into_iter();
        let own = own.chain(self.acquiring.timeout());
        others.chain(self.ending.timeout()).chain(own).min()
    }

    /// Returns the session, unless it is known to be lost. It is valid only before its deadline.
    pub(super) const fn live(&self) -> Option<&Live> {
        self.session.live()
    }

    /// Returns how many leases, callers and releases there are. The bound on leases counts them.
    pub(super) fn load(&self) -> usize {
        self.own.len() + self.acquiring.len() + self.releases.len()
    }

    /// Returns how many of them remain if only promised leases do: these, and the grants that are
    /// not released before an earlier process' promises have passed.
    pub(super) fn left_at_stop(&self) -> usize {
        self.own.len() + self.releases.held_back()
    }

    /// Returns whether no new leases are given.
    pub(super) const fn is_draining(&self) -> bool {
        self.session.is_draining()
    }

    /// Takes what an earlier process left. To be called before any other input.
    pub(super) fn recall(&mut self, cx: &mut Cx, saved: SavedState) {
        resumed::recall(&mut self.unchecked_leases(cx), saved);
    }

    /// Returns whether it is not known yet which leases of an earlier process continue.
    pub(super) const fn is_resuming(&self) -> bool {
        self.session.is_resuming()
    }

    /// Returns until when apps may believe what an earlier process promised them, but for leases that
    /// continue.
    pub(super) fn promised_until(&self) -> Moment {
        let unresumed = self.session.unresumed_until();
        let released = self.releases.promised_until();
        unresumed.map_or(released, |until| until.max(released))
    }

    /// Returns the leases. A session whose deadline has passed is lost first, and its leases with it.
    pub(super) fn leases<'a>(&'a mut self, cx: &'a mut Cx) -> Leases<'a> {
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        self.session.expire(env);
        self.follow_session(cx);
        self.unchecked_leases(cx)
    }

    /// Waits for no promise of an earlier process any more: the apps have ended.
    pub(super) fn release_held_back(&mut self, cx: &mut Cx) {
        self.releases.release_now(cx.now);
        self.timer(cx);
    }

    /// Records the revision of a lock that was read, written or reported. If it leapt, the store was
    /// restored from a backup, and the session is from before that.
    pub(super) fn observe_revision(&mut self, cx: &mut Cx, revision: Revision) {
        if self.horizon.observe(revision) {
            self.store_restored(cx, revision);
        }
    }

    /// Returns what the answer of a list is compared with, when the list is sent.
    pub(super) const fn seen_at_send(&self) -> SeenAtSend {
        self.horizon.at_send()
    }

    /// Records the revision of a consistent list.
    ///
    /// # Errors
    /// `StoreWentBack`. The session is lost with that: the store may lack its grants, and others may
    /// be given them.
    pub(super) fn observe_list(
        &mut self,
        cx: &mut Cx,
        before: SeenAtSend,
        listed: Revision,
    ) -> Result<(), StoreWentBack> {
        match self.horizon.list_answered(before, listed) {
            Ok(false) => {}
            Ok(true) => self.store_restored(cx, listed),
            Err(error) => {
                self.out.report(Report::StoreWentBack(error));
                self.lose_session(cx, Loss::StoreRestored);
                return Err(error);
            }
        }
        Ok(())
    }

    fn watch_happened(&mut self, cx: &mut Cx, id: WatchId, input: WatchInput) {
        if let WatchInput::Event(event) = &input {
            // First: after a restore the session is lost by that, and each lease with it, before any
            // lease is lost by its own event.
            self.observe_revision(cx, event.revision());
        }
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        let is_open = self.watching.happened(id, &input, env);
        if let WatchInput::Event(event) = input
            && is_open
        {
            observed::event(&mut self.unchecked_leases(cx), event);
        }
    }

    fn store_restored(&mut self, cx: &mut Cx, revision: Revision) {
        if self.session.live().is_some() {
            self.out.report(Report::StoreRestored(revision));
            return self.lose_session(cx, Loss::StoreRestored);
        }
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        // Also a session that is being created: its object may be from before the restore.
        if let Some((session, in_flight)) = self.session.restart(env) {
            self.end(cx, session, in_flight, None);
        }
    }

    fn lose_session(&mut self, cx: &mut Cx, loss: Loss) {
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        self.session.lose(loss, env);
        self.follow_session(cx);
    }

    fn end_session(&mut self, cx: &mut Cx, request: Option<CallId>) {
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        match self.session.take(env) {
            Some((session, in_flight)) => self.end(cx, session, in_flight, request),
            None => {
                if let Some(request) = request {
                    self.out.push(Effect::Reply(request, Reply::Done));
                }
            }
        }
    }

    fn end(
        &mut self,
        cx: &mut Cx,
        session: Session,
        in_flight: Option<OpId>,
        request: Option<CallId>,
    ) {
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        let ending = EndingSession::by_agent(session, in_flight, request, env.now);
        self.ending.add(ending, env);
    }

    fn answered(&mut self, cx: &mut Cx, op: OpId, answer: Answer) {
        let Some(call) = self.out.answered(op) else {
            // It was overdue. A revision was seen all the same.
            if let Answer::Page(page) = answer {
                self.observe_revision(cx, page.revision);
            }
            return;
        };
        let answer = match answer {
            // The revision counts even if no machine needs the list any more.
            Answer::Page(page) => match self.observe_list(cx, call.before, page.revision) {
                Ok(()) => Answer::Page(page),
                Err(error) => Answer::WentBack(error),
            },
            Answer::Lock(lock) => {
                self.observe_lock(cx, &call, lock.as_deref());
                Answer::Lock(lock)
            }
            Answer::LockWithRevision(look) => {
                match self.observe_list(cx, call.before, look.revision) {
                    Ok(()) => {
                        self.observe_lock(cx, &call, look.lock.as_ref());
                        Answer::LockWithRevision(look)
                    }
                    Err(error) => Answer::WentBack(error),
                }
            }
            answer => answer,
        };
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        // A session that is over by now is ended once its last call is answered.
        self.ending.answered(op, &answer, env);
        match call.machine {
            Machine::Session => self.session.answered(op, answer, env),
            machine @ (Machine::Watch | Machine::WarmPoll) => {
                let listed = self.watching.answered(&machine, op, answer, env);
                if let Some((session, page)) = listed {
                    observed::listed(&mut self.unchecked_leases(cx), &session, *page);
                }
            }
            Machine::Ending => {}
            Machine::Claim(resource) => {
                advance::answered(&mut self.unchecked_leases(cx), &resource, op, answer);
            }
            machine @ (Machine::Release(_) | Machine::Leftover(_) | Machine::Lost(_)) => {
                let record = &mut releases::Record {
                    history: &mut self.history,
                    session: self.session.live(),
                };
                self.releases.answered(machine, op, answer, record, env);
                self.take_explained(cx);
            }
        }
    }

    /// Records a lock that was read or written.
    fn observe_lock(&mut self, cx: &mut Cx, call: &InFlight, lock: Option<&Stored<Lock>>) {
        if let Some(lock) = lock {
            self.observe_revision(cx, lock.version);
        }
        observed::answered(&mut self.unchecked_leases(cx), call, lock);
    }

    fn timer(&mut self, cx: &mut Cx) {
        while let Some(op) = self.out.overdue(cx.now) {
            let error = StoreError::Ambiguous("the driver did not answer".into());
            self.answered(cx, op, Answer::Failed(error));
        }
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        self.ending.timer(env);
        let idle_since = self.idle_since;
        if idle_since.is_some_and(|since| self.session.is_idle_end_due(since, env.now)) {
            if let Some(live) = self.session.live() {
                env.out.report(Report::IdleSessionEnded(live.id().clone()));
            }
            self.end_session(cx, None);
        } else {
            self.session.timer(idle_since.is_some(), env);
        }
        self.follow_session(cx);
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        self.watching.timer(&mut self.own, env);
        let record = &mut releases::Record {
            history: &mut self.history,
            session: self.session.live(),
        };
        self.releases.timer(record, env);
        self.take_explained(cx);
        let leases = &mut self.unchecked_leases(cx);
        leases.timer();
        while let Some(resource) = leases.acquiring.next_due(leases.env.now) {
            advance::run(leases, &resource);
        }
    }

    fn take_explained(&mut self, cx: &mut Cx) {
        for (lease, read) in self.releases.take_explained() {
            observed::explained(&mut self.unchecked_leases(cx), &lease, read);
        }
    }

    fn unchecked_leases<'a>(&'a mut self, cx: &'a mut Cx) -> Leases<'a> {
        Leases {
            own: &mut self.own,
            history: &mut self.history,
            releases: &mut self.releases,
            session: &mut self.session,
            acquiring: &mut self.acquiring,
            peers: &mut self.peers,
            free_locks: &mut self.free_locks,
            changed: &mut self.changed,
            watching: &mut self.watching,
            env: Env::of(cx, &mut self.out, &mut self.horizon),
        }
    }

    /// Ends what depends on a session that was lost, and keeps the watch with the session.
    fn follow_session(&mut self, cx: &mut Cx) {
        if let Some(lost) = self.session.take_lost() {
            self.session_lost(cx, lost);
        }
        if let Some(resumption) = self.session.take_resumption() {
            resumed::settle(&mut self.unchecked_leases(cx), resumption);
        }
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        self.watching.follow(self.session.live(), env);
    }

    /// Ends every lease of a lost session. Their grants are released, and the session is revoked, once
    /// the last promise has passed.
    fn session_lost(&mut self, cx: &mut Cx, lost: LostSession) {
        if lost.loss == Loss::StoreRestored {
            // An old version may be read again, and must not count as silent all the time.
            self.peers.forget_all();
        }
        self.changed.extend(self.acquiring.resources());
        let mut leases = self.unchecked_leases(cx);
        let (promised, grants) = leases.end_all_of(&lost.session.id, lost.loss);
        let ending = EndingSession::lost(lost.session, lost.in_flight, promised);
        let env = &mut Env::of(cx, &mut self.out, &mut self.horizon);
        self.ending.add(ending, env);
        self.unchecked_leases(cx).release_lost(grants, promised);
    }
}

#[cfg(test)]
mod tests;
