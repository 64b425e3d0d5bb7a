//! Executes the effects of the core and feeds back what comes of them: calls to the store, the
//! watch, records, replies. It decides nothing.
//!
//! Invariant: effects are executed in their order under the agent's mutex, so a record is on file
//! before anything that follows from it is answered. Only logs and what takes the mutex itself come
//! after it is released.

mod report;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use tokio_util::sync::CancellationToken;

use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::protocol::token::{Revision, StoreWentBack};
use crate::random::Random;
use crate::store::{LockEvent, Page, StoreError, Stored, within};

use super::core::effect::{
    Answer, CallId, Cx, Effect, Input, Record, Reply, Rng, StoreCall, WatchCommand, WatchId,
    WatchInput,
};
use super::core::report::Report;
use super::core::{CALL_LIMIT, Core, SeenAtSend};
use super::loss::{LostByItself, LostLeases};
use super::state::{Ended, State};
use super::{AcquireError, Agent};
use report::report;

impl Rng for Random {
    fn id(&mut self) -> u128 {
        self.uuid().as_u128()
    }

    fn fraction(&mut self) -> f64 {
        Self::fraction(self)
    }
}

/// A lock that was read, by a read that was sent at this moment.
type LockRead = (Resource, Moment, Option<Box<Stored<Lock>>>);

/// What is done once the mutex is released.
#[derive(Default)]
pub(super) struct Deferred {
    pub(super) reports: Vec<Report>,
    lost: Vec<LostLeases>,
    lost_alone: Vec<LostByItself>,
    read: Vec<LockRead>,
    listed: Vec<(SessionId, Box<Page<Lock>>)>,
}

impl Deferred {
    /// Reports a lease that was lost by itself.
    pub(super) fn record_loss(&mut self, resource: Resource, ended: Ended, loss: Loss, at: Moment) {
        self.lost_alone.push(LostByItself {
            resource,
            ended,
            loss,
            at,
        });
    }
}

impl Agent {
    /// Feeds an input to the core.
    pub(super) fn feed(&self, input: Input) {
        self.with_core(|core, cx| core.handle(cx, input));
    }

    /// Feeds an input that the core answers, and returns the answer.
    pub(super) async fn request(&self, input: impl FnOnce(CallId) -> Input) -> Option<Reply> {
        let (call, receiver) = self.state().expect_reply();
        self.feed(input(call));
        receiver.await.ok()
    }

    /// Returns a session with at least half of its TTL left, which is begun or renewed first if need
    /// be. `listed` is the store's revision, if a list has just returned it.
    pub(super) async fn ready_session(
        &self,
        listed: Option<Revision>,
    ) -> Result<SessionId, AcquireError> {
        let need = |call| Input::NeedSession { call, listed };
        match self.request(need).await {
            Some(Reply::Session(session)) => session,
            Some(Reply::Done) | None => Err(AcquireError::SessionLost),
        }
    }

    /// Records a revision of a lock, wherever it was seen.
    pub(super) fn observe_revision(&self, revision: Revision) {
        self.with_core(|core, cx| core.observe_revision(cx, revision));
    }

    /// Records the revision of a consistent list.
    pub(super) fn observe_list(
        &self,
        before: SeenAtSend,
        listed: Revision,
    ) -> Result<(), StoreWentBack> {
        self.with_core(|core, cx| core.observe_list(cx, before, listed))
    }

    /// Runs a step of the core, and executes its effects.
    pub(super) fn with_core<T>(&self, step: impl FnOnce(&mut Core, &mut Cx) -> T) -> T {
        let mut deferred = Deferred::default();
        let result = {
            let mut state = self.state();
            let result = self.step(&mut state, step);
            self.execute_effects(&mut state, &mut deferred);
            result
        };
        self.run_deferred(deferred);
        result
    }

    /// Runs a step of the core. Its effects are still to be executed.
    pub(super) fn step<T>(
        &self,
        state: &mut State,
        step: impl FnOnce(&mut Core, &mut Cx) -> T,
    ) -> T {
        let mut random = self.random().clone();
        let mut cx = Cx {
            now: self.now(),
            wall: self.0.clock.wall(),
            rng: &mut random,
            idle_since: state.is_idle().then_some(state.idle_since),
        };
        step(&mut state.core, &mut cx)
    }

    /// Executes the effects of a step, in their order.
    pub(super) fn execute_effects(&self, state: &mut State, deferred: &mut Deferred) {
        while let Some(effect) = state.core.poll_effect() {
            self.execute(state, effect, deferred);
        }
        let timeout = state.core.poll_timeout(state.is_idle());
        if timeout.is_some_and(|timeout| timeout < state.next_timer) {
            self.0.deadlines_changed.notify_one();
        }
    }

    /// Does what takes the mutex itself.
    pub(super) fn run_deferred(&self, deferred: Deferred) {
        for what in &deferred.reports {
            report(what, &self.0.metrics);
        }
        for lost in deferred.lost {
            self.report_lost_leases(&lost);
        }
        for lost in &deferred.lost_alone {
            self.report_lost(&lost.resource, &lost.ended, lost.loss, lost.at);
        }
        for (resource, sent_at, lock) in deferred.read {
            self.note_election(&resource, sent_at, lock.as_deref());
            if let Some(lock) = lock {
                self.note_read(&lock);
            }
        }
        for (session, page) in deferred.listed {
            self.note_listed(&session, *page);
        }
    }

    fn execute(&self, state: &mut State, effect: Effect, deferred: &mut Deferred) {
        match effect {
            Effect::Call {
                op,
                call,
                limit,
                not_after,
            } => {
                let agent = self.clone();
                self.spawn(async move {
                    let answer = if not_after.is_some_and(|moment| agent.now() >= moment) {
                        Answer::Failed(StoreError::Unavailable("it came too late".into()))
                    } else {
                        // A port that panics gives no answer.
                        let call = AssertUnwindSafe(agent.call(call, limit)).catch_unwind();
                        call.await.unwrap_or_else(|_panic| {
                            Answer::Failed(StoreError::Ambiguous("the call panicked".into()))
                        })
                    };
                    agent.feed(Input::Answer(op, answer));
                });
            }
            Effect::Persist(Record::Session) => state.write_session(),
            Effect::Persist(Record::SessionOver) => state.write_session_over(),
            Effect::Watch(WatchCommand::Open(id, session, after)) => {
                let closed = CancellationToken::new();
                state.watch = Some(closed.clone().drop_guard());
                self.spawn_watch(id, session, after, closed);
            }
            Effect::Watch(WatchCommand::Close) => state.watch = None,
            Effect::Reply(call, reply) => {
                if let Some(waiting) = state.replies.remove(&call) {
                    // The caller may be gone.
                    let _ignored = waiting.send(reply);
                }
            }
            Effect::WakeStreams => self.0.streams_changed.notify_waiters(),
            Effect::WakeCallers => self.0.something_ended.notify_waiters(),
            Effect::LockRead(resource, sent_at, lock) => {
                deferred.read.push((resource, sent_at, lock));
            }
            Effect::ReleaseStarted(grant) => state.bound.release_started(&grant),
            Effect::LossExplained(lease, read) => {
                let read = read.map(|read| *read);
                self.loss_explained(state, &lease, read, deferred);
            }
            Effect::SessionStarted(session) => self.spawn_look_at_kept(session),
            Effect::SessionLost(lost) => {
                deferred.lost.push(self.session_lost(state, lost));
            }
            Effect::Listed(session, page) => deferred.listed.push((session, page)),
            Effect::Report(report) => deferred.reports.push(report),
        }
    }

    /// Makes one call to the store.
    async fn call(&self, call: StoreCall, limit: Duration) -> Answer {
        let (locks, sessions) = (&self.0.locks, &self.0.sessions);
        let lock = |stored| Answer::Lock(Some(Box::new(stored)));
        let session = |stored| Answer::Session(Some(Box::new(stored)));
        let page = |page| Answer::Page(Box::new(page));
        let answer = match call {
            StoreCall::GetSession(id) => within(limit, sessions.get(&id))
                .await
                .map(|found| Answer::Session(found.map(Box::new))),
            StoreCall::CreateSession(new) => {
                within(limit, sessions.create(&new)).await.map(session)
            }
            StoreCall::UpdateSession(current, next) => {
                let written = within(limit, sessions.update(&current, &next)).await;
                written.map(session)
            }
            StoreCall::GetLock(resource) => within(limit, locks.get(&resource))
                .await
                .map(|found| Answer::Lock(found.map(Box::new))),
            StoreCall::UpdateLock(current, next) => {
                let written = within(limit, locks.update(&current, &next)).await;
                written.map(lock)
            }
            StoreCall::ListOne => within(limit, locks.list(1, None)).await.map(page),
            StoreCall::ListHeld(session) => {
                let listed = within(limit, locks.list_held_by(&session)).await;
                listed.map(page)
            }
        };
        answer.unwrap_or_else(Answer::Failed)
    }

    /// Watches until the watch ends or is closed.
    fn spawn_watch(
        &self,
        id: WatchId,
        session: SessionId,
        after: Revision,
        closed: CancellationToken,
    ) {
        let agent = self.clone();
        self.spawn(async move {
            tokio::select! {
                biased;
                () = agent.0.stop.cancelled() => {}
                () = closed.cancelled() => {}
                end = AssertUnwindSafe(agent.watch(id, &session, after, &closed)).catch_unwind() => {
                    let end = end.unwrap_or_else(|_panic| {
                        // The event that it took last may be lost: what the session holds is listed.
                        WatchInput::Failed(StoreError::WatchExpired("the watch panicked".into()))
                    });
                    agent.feed(Input::Watch(id, end));
                }
            }
        });
    }

    async fn watch(
        &self,
        id: WatchId,
        session: &SessionId,
        after: Revision,
        closed: &CancellationToken,
    ) -> WatchInput {
        let mut events = match within(CALL_LIMIT, self.0.locks.watch(session, after)).await {
            Ok(events) => events,
            Err(error) => return WatchInput::Failed(error),
        };
        self.feed(Input::Watch(id, WatchInput::Opened));
        loop {
            let event = match events.next().await {
                Some(Ok(event)) => event,
                Some(Err(error)) => return WatchInput::Failed(error),
                None => return WatchInput::Ended,
            };
            let revision = match &event {
                LockEvent::Held(stored) => stored.version,
                LockEvent::Gone { at, .. } | LockEvent::Bookmark(at) => *at,
            };
            self.feed(Input::Watch(id, WatchInput::Event(revision)));
            if closed.is_cancelled() {
                // Closed by this event: the lease that it is about is over.
                return WatchInput::Ended;
            }
            self.note_event(event);
        }
    }
}
