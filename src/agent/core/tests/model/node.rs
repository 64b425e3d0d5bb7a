//! A pod: its clock, its apps, and the process of its agent with the shipped core.

use std::collections::VecDeque;

use super::rules::{Bug, Return, Rules, TTL_SECONDS};
use super::text::fingerprint;
use super::*;
use crate::agent::core::acquiring::AcquireConfig;
use crate::agent::core::backoff::Rng;
use crate::agent::core::effect::CallId;
use crate::agent::core::saved::SavedState;
use crate::agent::core::session::SessionConfig;
use crate::agent::core::tests::store::Store;
use crate::agent::journal::{past, record_of, worth_keeping};
use crate::protocol::ids::LeaseId;
use crate::protocol::object::LockEvent;
use crate::protocol::token::Token;

/// A clock with a start and a rate of its own. No protocol value of one node means anything to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeClock {
    boot: Duration,
    /// What it counts in a real second, in sixtieths of one.
    rate: u32,
}

impl NodeClock {
    pub(super) fn new(node: usize, is_fast: bool, bug: Option<Bug>) -> Self {
        let boots = u32::try_from(node + 1).unwrap();
        let fast = if bug == Some(Bug::ClocksFarApart) {
            80
        } else {
            63
        };
        Self {
            boot: Duration::from_secs(1_000_000) * boots,
            rate: if is_fast { fast } else { 60 },
        }
    }

    pub(super) fn at(self, real: Duration) -> Moment {
        Moment::since_boot(self.boot + real * self.rate / 60)
    }

    /// Returns how much real time after the beginning it shows a moment, or up to 10 µs later.
    pub(super) fn real(self, local: Moment) -> Duration {
        let counted = local.elapsed_since_boot().saturating_sub(self.boot);
        let nanos = (counted.as_nanos() * 60).div_ceil(u128::from(self.rate));
        Duration::from_nanos_u128(nanos.div_ceil(10_000) * 10_000)
    }
}

/// How far a call has come.
#[derive(Clone, Debug)]
pub(super) enum Flight {
    /// It takes no time.
    Prompt,
    /// Its request takes any time.
    LateRequest,
    /// It was applied, and the answer takes any time.
    LateAnswer(Answer),
}

/// A call to the store.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    pub(super) op: OpId,
    pub(super) call: StoreCall,
    pub(super) flight: Flight,
}

/// A running agent.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) core: Core,
    pub(super) calls: Vec<InFlight>,
    watch: Option<(WatchId, SessionId)>,
    pub(super) events: VecDeque<LockEvent>,
    pub(super) last_call: u64,
}

/// An app that wants one lock.
#[derive(Clone, Debug)]
pub(super) struct App {
    pub(super) phase: Phase,
    pub(super) believes_until: Option<Moment>,
    pub(super) tries: u8,
    /// Whether it had or wanted the lock until just now.
    pub(super) has_ended: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Phase {
    Idle,
    Asking(CallId, Moment),
    Holding(LeaseId),
}

/// What an app received.
pub(super) enum Received {
    /// A lease of this lock, with this token.
    Lease(usize, Token),
    Flaw(&'static str),
}

/// A pod.
#[derive(Clone, Debug)]
pub(super) struct Node {
    number: usize,
    pub(super) clock: NodeClock,
    pub(super) process: Option<Process>,
    /// How its process comes back, if it is down.
    pub(super) down: Option<Return>,
    pub(super) file: Option<SavedState>,
    pub(super) apps: Vec<App>,
    renewals: u8,
    /// How often its session was renewed for waiting callers alone.
    renewals_waiting: u8,
    sessions: u8,
    names: Names,
    /// Whether its process stands still.
    pub(super) is_paused: bool,
    /// The writes of a process that is down, which may still arrive.
    pub(super) left: Vec<StoreCall>,
}

/// Counts the names that it gives.
#[derive(Clone, Debug)]
struct Names(u128);

impl Rng for Names {
    fn id(&mut self) -> u128 {
        self.0 += 1;
        self.0
    }

    fn fraction(&mut self) -> f64 {
        0.5
    }
}

impl Node {
    pub(super) fn new(number: usize, is_fast: bool, rules: &Rules) -> Self {
        let app = App {
            phase: Phase::Idle,
            believes_until: None,
            tries: rules.tries,
            has_ended: false,
        };
        let mut node = Self {
            number,
            clock: NodeClock::new(number, is_fast, rules.bug),
            process: None,
            down: None,
            file: rules.has_files().then(SavedState::default),
            apps: vec![app; rules.locks],
            renewals: rules.renewals,
            renewals_waiting: 12,
            sessions: rules.sessions,
            names: Names((number as u128 + 1) << 64),
            is_paused: false,
            left: Vec::new(),
        };
        node.process = Some(node.new_process(rules));
        node
    }

    fn new_process(&self, rules: &Rules) -> Process {
        let config = CoreConfig {
            session: SessionConfig {
                pod: PodRef {
                    name: format!("p{}", self.number).into(),
                    uid: format!("u{}", self.number).into(),
                    node: None,
                },
                ttl: SessionTtl::clamped(TTL_SECONDS),
                idle_after: Duration::from_secs(1_000_000),
            },
            token_floor: 0,
            acquire: AcquireConfig {
                takes_over: rules.takes_over,
                max_leases: 100,
                max_waiting: 10,
            },
        };
        Process {
            core: Core::new(config),
            calls: Vec::new(),
            watch: None,
            events: VecDeque::new(),
            last_call: 0,
        }
    }

    pub(super) const fn renew_for_long(&mut self) {
        (self.renewals, self.renewals_waiting, self.sessions) = (u8::MAX, u8::MAX, u8::MAX);
    }

    pub(super) fn fingerprint(&self, now: Duration) -> u64 {
        fingerprint(self, self.clock.at(now))
    }

    /// Returns when anything is due after now.
    pub(super) fn next_due(&self, now: Duration) -> Option<Duration> {
        let local = self.clock.at(now);
        let timer = self.process.as_ref().and_then(Process::timeout);
        let beliefs = self.apps.iter().filter_map(|app| app.believes_until);
        let due = timer.into_iter().chain(beliefs);
        due.filter(|moment| *moment > local && moment.elapsed_since_boot() < Duration::MAX)
            .map(|moment| self.clock.real(moment))
            .min()
    }

    pub(super) fn is_due(&self, now: Duration) -> bool {
        let timeout = self.process.as_ref().and_then(Process::timeout);
        timeout.is_some_and(|timeout| timeout <= self.clock.at(now))
    }

    /// Returns whether neither its apps nor its process can do anything more.
    pub(super) fn is_done(&self, store: &Store) -> bool {
        let is_done = |app: &App| {
            matches!(app.phase, Phase::Idle) && app.tries == 0 && app.believes_until.is_none()
        };
        self.apps.iter().all(is_done) && self.has_nothing(store)
    }

    /// Returns whether its process has nothing left to do, and its session holds no lock.
    pub(super) fn has_nothing(&self, store: &Store) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| {
            let live = process.core.live();
            let holds = live.is_some_and(|live| !store.held_by(live.id()).is_empty());
            let core = &process.core;
            let is_idle = core.idle_since.is_some() && core.ending.is_empty();
            process.calls.is_empty() && is_idle && !holds
        })
    }

    /// Returns whether its apps or its process do something more without being asked.
    pub(super) fn has_plans(&self) -> bool {
        let has_plans = |app: &App| app.tries > 0 || !matches!(app.phase, Phase::Idle);
        self.down != Some(Return::Never)
            && (self.process.is_none() || self.apps.iter().any(has_plans))
    }

    /// Runs a step of the core, and executes its effects. Then each app that has a lease renews it: for
    /// exclusion that is the worst that apps can do.
    pub(super) fn step(
        &mut self,
        now: Duration,
        rules: &Rules,
        step: impl FnOnce(&mut Core, &mut Cx),
    ) -> Vec<Received> {
        let mut received = Vec::new();
        self.core_step(now, rules, step, &mut received);
        for lock in 0..self.apps.len() {
            self.renew(lock, now, rules, &mut received);
        }
        received
    }

    pub(super) fn core_step<T>(
        &mut self,
        now: Duration,
        rules: &Rules,
        step: impl FnOnce(&mut Core, &mut Cx) -> T,
        received: &mut Vec<Received>,
    ) -> Option<T> {
        let local = self.clock.at(now);
        let process = self.process.as_mut()?;
        let mut cx = Cx {
            now: local,
            wall: WallTime(0),
            rng: &mut self.names,
        };
        let result = step(&mut process.core, &mut cx);
        process.core.settle(&mut cx);
        if process.core.out.has_second_call() {
            received.push(Received::Flaw("a machine has two calls"));
        }
        while let Some(effect) = self.process.as_mut().and_then(|it| it.core.poll_effect()) {
            self.execute(effect, now, rules, received);
        }
        Some(result)
    }

    fn execute(
        &mut self,
        effect: Effect,
        now: Duration,
        rules: &Rules,
        received: &mut Vec<Received>,
    ) {
        match effect {
            Effect::Call { op, call, .. } => {
                if !self.may_send(&call) {
                    self.stand_still();
                } else if let Some(process) = &mut self.process {
                    let flight = Flight::Prompt;
                    process.calls.push(InFlight { op, call, flight });
                }
            }
            Effect::Persist(record) => self.persist(record, rules),
            Effect::Watch(command) => self.watch(command, now, rules, received),
            Effect::Reply(call, Reply::Acquired(outcome)) => {
                self.replied(call, *outcome, now, rules, received);
            }
            Effect::Reply(_, Reply::Done)
            | Effect::WakeStreams
            | Effect::SomethingEnded
            | Effect::OutlookChanged
            | Effect::LeaseOver(_)
            | Effect::LockRead(..)
            | Effect::LeadChanged(..)
            | Effect::Report(_) => {}
        }
    }

    /// The process does nothing any more. What it had sent may arrive.
    fn stand_still(&mut self) {
        let mut calls = self.process.take().map(|it| it.calls).unwrap_or_default();
        calls.retain(|call| matches!(call.flight, Flight::LateRequest) && is_write(&call.call));
        self.down = Some(Return::Never);
        self.left.extend(calls.into_iter().map(|call| call.call));
    }

    /// Uses up a renewal, or a session.
    fn may_send(&mut self, call: &StoreCall) -> bool {
        let asks = |app: &App| matches!(app.phase, Phase::Asking(..));
        let holds = |app: &App| matches!(app.phase, Phase::Holding(_));
        let only_waits = self.apps.iter().any(asks) && !self.apps.iter().any(holds);
        let left = match call {
            StoreCall::CreateSession(_) => &mut self.sessions,
            StoreCall::UpdateSession(_, next) if next.revoked.is_some() => return true,
            StoreCall::UpdateSession(..) if only_waits => &mut self.renewals_waiting,
            StoreCall::UpdateSession(..) => &mut self.renewals,
            _ => return true,
        };
        let may_send = *left > 0;
        *left = left.saturating_sub(1);
        may_send
    }

    fn persist(&mut self, record: Record, rules: &Rules) {
        let Some((file, process)) = self.file.as_mut().zip(self.process.as_ref()) else {
            return;
        };
        if rules.bug == Some(Bug::LeaseNotOnFile) && matches!(record, Record::Lease(_)) {
            return;
        }
        let core = &process.core;
        if matches!(record, Record::Compaction | Record::Replacement) {
            *file = SavedState::default();
            for record in worth_keeping(core) {
                past::take(file, record).expect("it was just made");
            }
        } else if let Some(record) = record_of(core, record) {
            past::take(file, record).expect("it was just made");
        }
    }

    fn watch(
        &mut self,
        command: WatchCommand,
        now: Duration,
        rules: &Rules,
        received: &mut Vec<Received>,
    ) {
        let Some(process) = &mut self.process else {
            return;
        };
        if let WatchCommand::Open(id, session, after) = command {
            // What happened since the list that it follows.
            process.events.retain(|event| event.revision() > after);
            process.watch = Some((id, session));
            let opened = Input::Watch(id, WatchInput::Opened);
            self.core_step(now, rules, |core, cx| core.handle(cx, opened), received);
        } else {
            process.events.clear();
            process.watch = None;
        }
    }

    /// Returns whether its watch is one of a session, or will begin at a list that the store has answered.
    pub(super) fn watches(&self, session: &SessionId) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        if let Some((_, watched)) = &process.watch {
            return watched == session;
        }
        process.calls.iter().any(|call| {
            let is_answered = matches!(call.flight, Flight::LateAnswer(_));
            is_answered && matches!(&call.call, StoreCall::ListHeld(of) if of == session)
        })
    }

    pub(super) fn queue_event(&mut self, event: &LockEvent) {
        if let Some(process) = &mut self.process {
            process.events.push_back(event.clone());
        }
    }

    pub(super) fn has_event(&self) -> bool {
        let process = self.process.as_ref().filter(|_| !self.is_paused);
        process.is_some_and(|process| process.watch.is_some() && !process.events.is_empty())
    }

    /// Begins its session.
    pub(super) fn need_session(&mut self, listed: Revision, rules: &Rules) -> Vec<Received> {
        self.step(Duration::ZERO, rules, |core, cx| {
            let before = core.seen_at_send();
            core.observe_list(cx, before, listed)
                .expect("nothing was seen yet");
            let mut leases = core.leases(cx);
            leases
                .session
                .need(resource(99), Some(listed), &mut leases.env);
        })
    }

    /// Takes the next event of the watch.
    pub(super) fn next_event(&mut self) -> Option<Input> {
        let process = self.process.as_mut()?;
        let (id, _) = process.watch.as_ref()?;
        let event = process.events.pop_front()?;
        Some(Input::Watch(*id, WatchInput::Event(event)))
    }

    /// Loses what is only in memory. Its writes that are under way may still arrive.
    pub(super) fn crash(&mut self, way: Return) {
        self.down = Some(way);
        self.is_paused = false;
        let process = self.process.take();
        if let Some(file) = &mut self.file {
            match way {
                Return::WithFile => {}
                Return::WithOlderFile => file.leases.clear(),
                Return::WithoutFile | Return::Never => *file = SavedState::default(),
            }
        }
        for app in &mut self.apps {
            if matches!(app.phase, Phase::Asking(..)) {
                app.phase = Phase::Idle;
            }
        }
        let calls = process.into_iter().flat_map(|process| process.calls);
        let unapplied = calls.filter(|call| !matches!(call.flight, Flight::LateAnswer(_)));
        self.left
            .extend(unapplied.map(|call| call.call).filter(is_write));
    }

    pub(super) fn restart(&mut self, now: Duration, rules: &Rules) -> Vec<Received> {
        let way = self.down.take();
        self.process = Some(self.new_process(rules));
        if matches!(way, Some(Return::WithOlderFile | Return::WithoutFile)) {
            // Its apps learn that from their next renewal.
            for app in &mut self.apps {
                app.phase = Phase::Idle;
            }
        }
        let Some(mut saved) = self.file.clone() else {
            return Vec::new();
        };
        let ttl = SessionTtl::clamped(TTL_SECONDS);
        if past::finish(&mut saved, ttl, self.clock.at(now)).is_err() {
            return vec![Received::Flaw("a state file is refused")];
        }
        self.step(now, rules, |core, cx| core.recall(cx, saved))
    }
}

impl Process {
    fn timeout(&self) -> Option<Moment> {
        self.core.poll_timeout()
    }
}

/// Returns whether a call changes an object.
pub(super) const fn is_write(call: &StoreCall) -> bool {
    matches!(
        call,
        StoreCall::CreateSession(_)
            | StoreCall::UpdateSession(..)
            | StoreCall::CreateLock(_)
            | StoreCall::JoinLock(..)
            | StoreCall::UpdateLock(..)
    )
}

pub(super) fn resource(lock: usize) -> Resource {
    Resource::parse(&format!("r{lock}")).unwrap()
}
