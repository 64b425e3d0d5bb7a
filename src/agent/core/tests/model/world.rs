//! A world at one time, as one value, and the steps that it can take.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::actions::{Action, LATEST_ASK};
use super::node::{Flight, InFlight, Node, Received, is_write, resource};
use super::operator::{self, Operator};
use super::rules::{Budget, Bug, Return, Rules, WatchPace};
use super::text::fingerprint;
use super::*;
use crate::agent::core::tests::store::Store;
use crate::protocol::object::LockEvent;
use crate::protocol::token::Token;

/// How far the runbook raises the revision of a restored store.
const RAISE: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: Duration,
    pub(super) store: Arc<Store>,
    pub(super) backup: Option<Arc<Store>>,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) operator: Option<Operator>,
    /// Writes that their senders gave up; each may be applied at any later time, or never.
    pub(super) strays: Vec<StoreCall>,
    /// The largest token that an app received for each lock.
    received: Vec<Token>,
    /// The locks whose state a person changed.
    pub(super) overridden: Vec<bool>,
    pub(super) left: Budget,
    /// What went wrong on the way here.
    pub(super) flaw: Option<&'static str>,
    /// Tokens that did not rise.
    pub(super) tokens_fell: bool,
    /// What tells it apart from other worlds.
    prints: Vec<u64>,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.prints.hash(state);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.prints == other.prints
    }
}

impl World {
    pub(super) fn new(rules: &Rules, fast_clocks: usize) -> Self {
        let node = |number| {
            let is_fast = fast_clocks >> number & 1 == 1;
            Arc::new(Node::new(number, is_fast, rules))
        };
        let is_fast = fast_clocks >> rules.nodes & 1 == 1;
        let mut world = Self {
            now: Duration::ZERO,
            store: Arc::default(),
            backup: None,
            nodes: (0..rules.nodes).map(node).collect(),
            operator: rules
                .operator
                .then(|| Operator::new(rules.nodes, is_fast, rules.bug)),
            strays: Vec::new(),
            received: vec![Token::default(); rules.locks],
            overridden: vec![false; rules.locks],
            left: rules.budget,
            flaw: None,
            tokens_fell: false,
            prints: vec![0; rules.nodes],
        };
        Arc::make_mut(&mut world.store).revision = 10;
        if rules.has_begun {
            world.begin(rules);
        }
        world.print(None);
        world
    }

    /// Creates the locks, and a session of each node.
    fn begin(&mut self, rules: &Rules) {
        for lock in 0..rules.locks {
            self.apply(StoreCall::CreateLock(resource(lock)), rules);
        }
        for node in 0..self.nodes.len() {
            let listed = Revision(self.store.revision);
            self.on(node, |node| node.need_session(listed, rules));
            self.call_step(&Action::Call(node, 0), rules);
        }
    }

    /// Computes again what changed since another world.
    fn print(&mut self, before: Option<&Self>) {
        let before = before.filter(|before| before.now == self.now);
        let nodes = self.nodes.iter().enumerate().map(|(number, node)| {
            let same = before.filter(|before| Arc::ptr_eq(&before.nodes[number], node));
            same.map_or_else(|| node.fingerprint(self.now), |same| same.prints[number])
        });
        let mut prints: Vec<_> = nodes.collect();
        let same = before.filter(|before| Arc::ptr_eq(&before.store, &self.store));
        prints.push(same.map_or_else(
            || fingerprint(&self.store, Moment::default()),
            |same| same.prints[self.nodes.len()],
        ));
        let operator = self.operator.as_ref();
        let now = operator.map_or(Moment::default(), |operator| operator.clock.at(self.now));
        let rest = (
            &self.backup,
            operator,
            &self.strays,
            &self.received,
            &self.overridden,
            (self.left, self.flaw, self.tokens_fell, self.phase()),
            self.now.min(LATEST_ASK),
        );
        prints.push(fingerprint(&rest, now));
        self.prints = prints;
    }

    /// Returns whether it is one of so many.
    pub(super) fn is_one_in(&self, many: u64) -> bool {
        let mixed = self
            .prints
            .iter()
            .fold(0_u64, |mixed, print| mixed.rotate_left(1) ^ print);
        mixed % many == 0
    }

    /// Returns the same world with processes that renew for as long as it takes.
    pub(super) fn with_patience(&self) -> Self {
        let mut world = self.clone();
        for node in &mut world.nodes {
            Arc::make_mut(node).renew_for_long();
        }
        world
    }

    /// Returns whether an app received a lease after another world.
    pub(super) fn has_granted_since(&self, before: &Self) -> bool {
        self.received != before.received
    }

    /// Returns the same world in which no late write arrives any more.
    pub(super) fn without_late_writes(&self) -> Self {
        let mut world = self.clone();
        world.strays.clear();
        world
    }

    /// Returns the world after a step.
    pub(super) fn after(&self, action: &Action, rules: &Rules) -> Self {
        let mut next = self.clone();
        next.step(action, rules);
        for number in 0..next.nodes.len() {
            next.end_node(number);
        }
        next.print(Some(self));
        next
    }

    /// Takes the writes of a process that stands still, and ends one that has nothing to do any more.
    fn end_node(&mut self, number: usize) {
        let node = &self.nodes[number];
        if !node.left.is_empty() {
            let left = std::mem::take(&mut Arc::make_mut(&mut self.nodes[number]).left);
            self.strays.extend(left);
            return;
        }
        // A write that arrives late may give it something to do.
        if node.is_done(&self.store) && self.strays.is_empty() {
            let node = Arc::make_mut(&mut self.nodes[number]);
            node.crash(Return::Never);
        }
    }

    fn step(&mut self, action: &Action, rules: &Rules) {
        let now = self.now;
        match *action {
            Action::Advance => self.advance(),
            Action::Timer(node) => self.feed(node, Input::Timer, rules),
            Action::Ask(node, lock) => self.on(node, |node| node.ask(lock, now, rules)),
            Action::End(node, lock) => self.on(node, |node| node.end(lock, now, rules)),
            Action::HangUp(node, lock) => {
                self.left.hang_ups -= 1;
                self.on(node, |node| node.hang_up(lock, now, rules));
            }
            Action::Report(node) => self.report_next(node, rules),
            Action::Pause(node) => {
                self.left.pauses -= 1;
                Arc::make_mut(&mut self.nodes[node]).is_paused = true;
            }
            Action::Resume(node) => Arc::make_mut(&mut self.nodes[node]).is_paused = false,
            Action::Crash(node, way) => {
                self.left.crashes -= 1;
                Arc::make_mut(&mut self.nodes[node]).crash(way);
            }
            Action::Restart(node) => self.on(node, |node| node.restart(now, rules)),
            Action::Call(..)
            | Action::DelayRequest(..)
            | Action::DelayAnswer(..)
            | Action::Apply(..)
            | Action::Answer(..)
            | Action::TimeOut(..) => self.call_step(action, rules),
            Action::ApplyStray(stray) => {
                let call = self.strays.remove(stray);
                self.apply(call, rules);
            }
            _ => self.other_step(action, rules),
        }
        if rules.watch == WatchPace::Prompt {
            self.report(rules);
        }
    }

    fn advance(&mut self) {
        self.now = self.next_due().unwrap_or(self.now);
        for node in &mut self.nodes {
            if node.has_forgotten(self.now) {
                Arc::make_mut(node).forget(self.now);
            }
        }
    }

    fn feed(&mut self, node: usize, input: Input, rules: &Rules) {
        let now = self.now;
        let is_timer = matches!(input, Input::Timer);
        self.on(node, |node| {
            node.step(now, rules, |core, cx| core.handle(cx, input))
        });
        if is_timer && self.nodes[node].is_due(now) {
            self.flaw = Some("a timer is due again at once");
        }
    }

    fn report_next(&mut self, node: usize, rules: &Rules) {
        if let Some(event) = Arc::make_mut(&mut self.nodes[node]).next_event() {
            self.feed(node, event, rules);
        }
    }

    fn on(&mut self, number: usize, step: impl FnOnce(&mut Node) -> Vec<Received>) {
        for received in step(Arc::make_mut(&mut self.nodes[number])) {
            match received {
                Received::Flaw(flaw) => self.flaw = Some(flaw),
                Received::Lease(lock, token) => {
                    self.tokens_fell |= token <= self.received[lock];
                    self.received[lock] = self.received[lock].max(token);
                }
            }
        }
    }

    fn call_step(&mut self, action: &Action, rules: &Rules) {
        match *action {
            Action::DelayRequest(node, index) => {
                self.left.late -= 1;
                self.call(node, index).flight = Flight::LateRequest;
            }
            Action::DelayAnswer(node, index) => {
                self.left.late -= 1;
                let call = self.call(node, index).call.clone();
                let answer = self.apply(call, rules);
                self.call(node, index).flight = Flight::LateAnswer(answer);
            }
            // The answer waits for the process.
            Action::Apply(node, index) if self.nodes[node].is_paused => {
                let call = self.call(node, index).call.clone();
                let answer = self.apply(call, rules);
                self.call(node, index).flight = Flight::LateAnswer(answer);
            }
            Action::Call(node, index) | Action::Apply(node, index) => {
                let call = self.take_call(node, index);
                let answer = self.apply(call.call, rules);
                self.feed(node, Input::Answer(call.op, answer), rules);
            }
            Action::Answer(node, index) => {
                // A process that continues may take the answer before it sees how late it is.
                Arc::make_mut(&mut self.nodes[node]).is_paused = false;
                let call = self.take_call(node, index);
                if let Flight::LateAnswer(answer) = call.flight {
                    self.feed(node, Input::Answer(call.op, answer), rules);
                }
            }
            Action::TimeOut(node, index) => {
                self.left.timeouts -= 1;
                let call = self.take_call(node, index);
                if matches!(call.flight, Flight::LateRequest) {
                    self.strays.push(call.call);
                }
                self.feed(node, Input::Answer(call.op, unclear()), rules);
            }
            _ => {}
        }
    }

    fn call(&mut self, node: usize, index: usize) -> &mut InFlight {
        let process = Arc::make_mut(&mut self.nodes[node]).process.as_mut();
        &mut process.expect("it has made the call").calls[index]
    }

    fn take_call(&mut self, node: usize, index: usize) -> InFlight {
        let process = Arc::make_mut(&mut self.nodes[node]).process.as_mut();
        process.expect("it has made the call").calls.remove(index)
    }

    /// A call reaches the store, which tells the watches of it.
    fn apply(&mut self, call: StoreCall, rules: &Rules) -> Answer {
        if !is_write(&call) {
            return Store::clone(&self.store).call(call);
        }
        let store = Arc::make_mut(&mut self.store);
        let answer = match (call, rules.bug) {
            (StoreCall::UpdateLock(_, next), Some(Bug::LockWithoutPrecondition)) => {
                store.write_lock(*next)
            }
            (call, _) => store.call(call),
        };
        if matches!(answer, Answer::Failed(StoreError::Invalid(_))) {
            self.flaw = Some("a write breaks the rules of the store");
        }
        self.queue_events(rules);
        answer
    }

    /// Hands what the store logged to the watches.
    fn queue_events(&mut self, rules: &Rules) {
        let store = Arc::make_mut(&mut self.store);
        // Which grants there were tells no states apart.
        store.granted.clear();
        for (session, event) in std::mem::take(&mut store.log) {
            self.queue_event(&session, &event, rules);
        }
    }

    fn queue_event(&mut self, session: &SessionId, event: &LockEvent, rules: &Rules) {
        for node in &mut self.nodes {
            if rules.watch != WatchPace::Silent && node.watches(session) {
                Arc::make_mut(node).queue_event(event);
            }
        }
    }

    /// Lets the watches report all that they have.
    fn report(&mut self, rules: &Rules) {
        for number in 0..self.nodes.len() {
            while self.nodes[number].has_event() {
                self.report_next(number, rules);
            }
        }
    }

    fn other_step(&mut self, action: &Action, rules: &Rules) {
        let store = Arc::make_mut(&mut self.store);
        match action {
            Action::Observe(_) | Action::Revoke(_) | Action::TakeOver(_) => {
                if let Some(operator) = &mut self.operator {
                    operator.step(action, store, self.now);
                }
            }
            Action::DeleteSession(id) => {
                self.left.session_deletes -= 1;
                store.revision += 1;
                store.sessions.remove(id);
            }
            Action::DeleteLock(lock) => {
                self.left.lock_deletes -= 1;
                self.overridden[*lock] = true;
                store.delete_lock(&resource(*lock));
            }
            Action::TidyUp(lock) => {
                self.left.tidies -= 1;
                store.delete_lock(&resource(*lock));
            }
            Action::ForceRelease(lock) => {
                self.left.forces -= 1;
                self.overridden[*lock] = true;
                let before = store.locks.get(&resource(*lock)).cloned();
                operator::force_release(store, &resource(*lock));
                if let (Some(before), Some(Bug::QueueOfFreeLock)) = (before, rules.bug) {
                    let grant = None;
                    store.write_lock(Lock {
                        grant,
                        ..before.value
                    });
                }
            }
            Action::TakeBackup => self.backup = Some(self.store.clone()),
            Action::Restore => {
                self.left.restores -= 1;
                self.overridden.fill(true);
                if let Some(backup) = &self.backup {
                    self.store = backup.clone();
                }
                if rules.bug != Some(Bug::RestoreWithoutRaise) {
                    Arc::make_mut(&mut self.store).revision += RAISE;
                }
            }
            _ => {}
        }
        self.queue_events(rules);
    }
}
