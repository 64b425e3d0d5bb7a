//! Executes the effects of the core and feeds back what comes of them: calls to the store, the
//! watch, records, replies. It decides nothing.
//!
//! Invariant: effects are executed in their order under the agent's mutex, so a record is on file
//! before anything that follows from it is answered. After the mutex is released come logs and counters, and
//! answers that no caller receives are fed back.

mod report;

use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::protocol::ids::SessionId;
use crate::protocol::time::Moment;
use crate::protocol::token::{Revision, StoreWentBack};
use crate::random::Random;
use crate::store::{LockStore, SessionStore, StoreError, within};

use super::api::Acquired;
use super::config::Config;
use super::core::backoff::{Rng, pause};
use super::core::effect::{
    Answer, CallId, Effect, Input, Reply, StoreCall, WatchCommand, WatchId, WatchInput,
};
use super::core::leases::Leases;
use super::core::report::Report;
use super::core::{CALL_LIMIT, Core, Cx, SeenAtSend};
use super::metrics::Metrics;
use super::state::State;
use super::streams::Streams;
use report::report;
pub(super) use report::state_discarded;

/// A task that failed is not started again faster than this.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// The longest sleep of the timer. It wakes earlier for whatever is due earlier.
const LONGEST_SLEEP: Duration = Duration::from_secs(3_600);

/// What waits until the mutex is released.
#[derive(Default)]
struct After {
    /// What is logged and counted.
    reports: Vec<Report>,
    /// Answers that no caller receives.
    undelivered: Vec<Reply>,
}

impl Rng for Random {
    fn id(&mut self) -> u128 {
        self.uuid().as_u128()
    }

    fn fraction(&mut self) -> f64 {
        Self::fraction(self)
    }
}

/// What drives the core. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(super) struct Driver(Arc<Shared>);

/// What its handles share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) locks: Arc<dyn LockStore>,
    pub(super) sessions: Arc<dyn SessionStore>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    state: Mutex<State>,
    /// The streams of events that are open.
    pub(super) streams: Streams,
    /// Wakes the timer when the core's next moment may be nearer than the one it sleeps for.
    deadlines_changed: Notify,
    /// Notified when a lease, a claim or a release ended.
    pub(super) something_ended: Notify,
    /// Notified when streams may have an event that no timer brings.
    pub(super) streams_changed: Notify,
    /// Notified when more is known of a lock that callers wait for.
    pub(super) outlook_changed: Notify,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl Deref for Driver {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Driver {
    /// Starts to drive a core that knows nothing yet. Must be called inside a tokio runtime.
    pub(super) fn new(
        config: Config,
        locks: Arc<dyn LockStore>,
        sessions: Arc<dyn SessionStore>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let driver = Self(Arc::new(Shared {
            metrics: Metrics::new(&config.metrics_prefixes),
            state: Mutex::new(State::new(Core::new(config.core()))),
            streams: Streams::new(config.max_streams),
            config,
            locks,
            sessions,
            clock,
            deadlines_changed: Notify::new(),
            something_ended: Notify::new(),
            streams_changed: Notify::new(),
            outlook_changed: Notify::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }));
        driver.spawn_timer();
        driver
    }

    /// The local clock.
    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// What is remembered. The guard must not be held over an await.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned state is still guarded by the clock: every belief has a deadline in it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has stopped and left promised leases to their session.
    pub(super) fn has_left(&self) -> bool {
        self.state().has_left
    }

    /// How often a stream says that all is well. A little more often than every third of the period:
    /// timers are late.
    pub(super) fn heartbeat_interval(&self) -> Duration {
        self.config.session_ttl.period() * 3 / 10
    }

    /// Sleeps until a moment on the agent's clock. The timer may be late (a machine that slept)
    /// or early; whoever wakes looks at the clock again.
    pub(super) async fn sleep_until(&self, moment: Moment) {
        tokio::time::sleep(moment.since(self.now())).await;
    }

    /// Starts a task.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_joined(task);
    }

    /// The one place where tasks of the agent begin.
    fn spawn_joined(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        match &self.config.pause {
            None => self.tasks.spawn(task),
            Some(pause) => self.tasks.spawn(pause.hold(task)),
        }
    }

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

    /// Returns a random pause after so many failed attempts.
    pub(super) fn pause_after(&self, failures: u32, longest: Duration) -> Duration {
        pause(&mut self.config.random.clone(), failures, longest)
    }

    /// Waits until a moment, or the agent's end.
    pub(super) async fn until_or_stop(&self, until: Moment) {
        // Timers only wake.
        while self.now() < until && !self.stop.is_cancelled() {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                () = self.sleep_until(until) => {}
            }
        }
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
        self.with_state(|state| self.step(state, step))
    }

    /// Changes the state, in steps of the core and beside it, and executes the effects before anything
    /// else can look at it.
    pub(super) fn with_state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut after = After::default();
        let result = {
            let mut state = self.state();
            let result = change(&mut state);
            self.execute_effects(&mut state, &mut after);
            result
        };
        for what in &after.reports {
            report(what, &self.metrics);
        }
        for reply in after.undelivered {
            self.undelivered(reply);
        }
        result
    }

    /// No client received an answer: tells the core of its lease.
    pub(super) fn undelivered(&self, reply: Reply) {
        if let Reply::Acquired(outcome) = reply
            && let Ok(Acquired::Granted {
                lease,
                replayed: false,
            }) = *outcome
        {
            self.with_state(|state| {
                if !state.has_left {
                    self.step(state, |core, cx| {
                        core.handle(cx, Input::Undelivered(lease.lease));
                    });
                }
            });
        }
    }

    /// Runs a step about leases, and executes its effects.
    pub(super) fn with_leases<T>(&self, step: impl FnOnce(&mut Leases) -> T) -> T {
        self.with_core(|core, cx| step(&mut core.leases(cx)))
    }

    /// Runs a step of the core, within [`Driver::with_state`].
    pub(super) fn step<T>(
        &self,
        state: &mut State,
        step: impl FnOnce(&mut Core, &mut Cx) -> T,
    ) -> T {
        let mut random = self.config.random.clone();
        // Read under the mutex, so that all steps are in the order of their times.
        let now = self.now();
        let mut cx = Cx {
            now,
            wall: self.clock.wall(),
            rng: &mut random,
        };
        let result = step(&mut state.core, &mut cx);
        state.core.settle(&mut cx);
        result
    }

    /// Executes the effects of a step, in their order.
    fn execute_effects(&self, state: &mut State, after: &mut After) {
        while let Some(effect) = state.core.poll_effect() {
            self.execute(state, effect, after);
        }
        let timeout = state.core.poll_timeout();
        if timeout.is_some_and(|timeout| timeout < state.next_timer) {
            self.deadlines_changed.notify_one();
        }
    }

    /// Feeds the core's timer when it is due.
    fn spawn_timer(&self) {
        let driver = self.clone();
        self.spawn_supervised("the timer", move || driver.clone().keep_time());
    }

    async fn keep_time(self) {
        while !self.stop.is_cancelled() {
            // Nothing needs to wake this task while it is awake: it asks the core before it sleeps.
            self.state().next_timer = Moment::default();
            self.feed(Input::Timer);
            let next = {
                let mut state = self.state();
                let timeout = state.core.poll_timeout();
                state.next_timer = timeout.unwrap_or(Moment::since_boot(Duration::MAX));
                state.next_timer
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                () = self.deadlines_changed.notified() => {}
                () = self.sleep_until(next.min(self.now().after(LONGEST_SLEEP))) => {}
            }
        }
    }

    /// Runs a task that must not die silently: if it panics, it is started again.
    pub(super) fn spawn_supervised<F>(
        &self,
        name: &'static str,
        task: impl Fn() -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let driver = self.clone();
        self.spawn(async move {
            while let Err(error) = driver.spawn_joined(task()).await {
                tracing::error!(%error, task = name, "task failed; restarting");
                tokio::time::sleep(RESTART_PAUSE).await;
            }
        });
    }

    fn execute(&self, state: &mut State, effect: Effect, after: &mut After) {
        match effect {
            Effect::Call {
                op,
                call,
                limit,
                not_after,
            } => {
                let driver = self.clone();
                self.spawn(async move {
                    let answer = if not_after.is_some_and(|moment| driver.now() >= moment) {
                        Answer::Failed(StoreError::Unavailable("it came too late".into()))
                    } else {
                        // A port that panics gives no answer.
                        let call = AssertUnwindSafe(driver.call(call, limit)).catch_unwind();
                        call.await.unwrap_or_else(|_panic| {
                            Answer::Failed(StoreError::Ambiguous("the call panicked".into()))
                        })
                    };
                    driver.feed(Input::Answer(op, answer));
                });
            }
            Effect::Persist(record) => state.journal.persist(&state.core, record),
            Effect::Watch(WatchCommand::Open(id, session, after)) => {
                let closed = CancellationToken::new();
                state.watch = Some(closed.clone().drop_guard());
                self.spawn_watch(id, session, after, closed);
            }
            Effect::Watch(WatchCommand::Close) => state.watch = None,
            Effect::Reply(call, reply) => {
                if let Some(waiting) = state.replies.remove(&call)
                    && let Err(undelivered) = waiting.send(reply)
                {
                    after.undelivered.push(undelivered);
                }
            }
            Effect::WakeStreams => self.streams_changed.notify_waiters(),
            Effect::SomethingEnded => self.something_ended.notify_waiters(),
            Effect::OutlookChanged => self.outlook_changed.notify_waiters(),
            Effect::LeaseOver(lease) => self.streams.wake(&lease),
            Effect::LockRead(resource, sent_at, lock) => {
                let elections = &mut state.elections;
                elections.record_read(&resource, sent_at, lock.as_deref());
            }
            Effect::LeadChanged(resource, at) => state.elections.record_change(&resource, at),
            Effect::Report(report) => after.reports.push(report),
        }
    }

    /// Makes one call to the store.
    async fn call(&self, call: StoreCall, limit: Duration) -> Answer {
        let (locks, sessions) = (&self.locks, &self.sessions);
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
            StoreCall::GetLockWithRevision(resource) => {
                within(limit, locks.get_with_revision(&resource))
                    .await
                    .map(|found| Answer::LockWithRevision(Box::new(found)))
            }
            StoreCall::CreateLock(resource) => {
                within(limit, locks.create(&resource)).await.map(lock)
            }
            StoreCall::JoinLock(current, waiter) => {
                within(limit, locks.join(&current, &waiter)).await.map(lock)
            }
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
        let driver = self.clone();
        self.spawn(async move {
            tokio::select! {
                biased;
                () = driver.stop.cancelled() => {}
                () = closed.cancelled() => {}
                end = AssertUnwindSafe(driver.watch(id, &session, after, &closed)).catch_unwind() => {
                    let end = end.unwrap_or_else(|_panic| {
                        // The event that it took last may be lost: what the session holds is listed.
                        WatchInput::Failed(StoreError::WatchExpired("the watch panicked".into()))
                    });
                    driver.feed(Input::Watch(id, end));
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
        let mut events = match within(CALL_LIMIT, self.locks.watch(session, after)).await {
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
            self.feed(Input::Watch(id, WatchInput::Event(event)));
            if closed.is_cancelled() {
                return WatchInput::Ended;
            }
        }
    }
}
