//! A world at one time, as one value, and the steps that it can take.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::node::{Flight, InFlight, Node, Phase, Received, is_write, resource};
use super::operator::{self, Operator};
use super::rules::{Bug, Budget, Return, Rules, TTL_SECONDS, WatchPace};
use super::text::fingerprint;
use super::*;
use crate::agent::core::tests::store::Store;
use crate::protocol::object::LockEvent;
use crate::protocol::token::Token;

/// How often apps, people and faults act: at the time of each renewal, and after each deadline.
const ACT_EVERY: Duration = Duration::from_secs(TTL_SECONDS / 3);
/// How far the runbook raises the revision of a restored store.
const RAISE: u64 = 1_000_000_000;

/// One step. A node comes first, then a lock or a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Time advances to the next moment at which anything is due.
    Advance,
    Timer(usize),
    Ask(usize, usize),
    End(usize, usize),
    HangUp(usize, usize),
    /// A call is applied and answered.
    Call(usize, usize),
    DelayRequest(usize, usize),
    DelayAnswer(usize, usize),
    /// A late request is applied and answered.
    Apply(usize, usize),
    /// A late answer arrives.
    Answer(usize, usize),
    /// A late write is given up.
    TimeOut(usize, usize),
    ApplyStray(usize),
    /// The watch reports its next event.
    Report(usize),
    /// A process stands still.
    Pause(usize),
    Resume(usize),
    Crash(usize, Return),
    Restart(usize),
    /// The operator reads a session.
    Observe(SessionId),
    Revoke(SessionId),
    TakeOver(usize),
    DeleteSession(SessionId),
    DeleteLock(usize),
    ForceRelease(usize),
    TakeBackup,
    Restore,
}

impl Action {
    /// Returns its kind.
    pub(super) fn kind(&self) -> String {
        let text = format!("{self:?}");
        let end = text.find(|sign: char| !sign.is_alphabetic());
        text[..end.unwrap_or(text.len())].to_owned()
    }
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: Duration,
    pub(super) store: Arc<Store>,
    backup: Option<Arc<Store>>,
    pub(super) nodes: Vec<Arc<Node>>,
    operator: Option<Operator>,
    /// Writes that their senders gave up; each may be applied at any later time, or never.
    strays: Vec<StoreCall>,
    /// The largest token that an app received for each lock.
    received: Vec<Token>,
    /// The locks whose state a person changed.
    pub(super) overridden: Vec<bool>,
    left: Budget,
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
        );
        prints.push(fingerprint(&rest, now));
        self.prints = prints;
    }

    /// Returns whether it is one of so many.
    pub(super) fn is_one_in(&self, many: u64) -> bool {
        let mixed = self.prints.iter().fold(0_u64, |mixed, print| mixed.rotate_left(1) ^ print);
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

    pub(super) fn actions(&self, rules: &Rules, to: &mut Vec<Action>) {
        // A timer changes one node alone, so its order among other steps of this time does not matter.
        let is_due = |node: &Arc<Node>| !node.is_paused && node.is_due(self.now);
        if let Some(number) = self.nodes.iter().position(is_due) {
            return to.push(Action::Timer(number));
        }
        for (number, node) in self.nodes.iter().enumerate() {
            if self.may_act() {
                self.app_actions(number, node, rules, to);
                self.fault_actions(number, node, rules, to);
            }
            self.process_actions(number, node, to);
        }
        to.extend((0..self.strays.len()).map(Action::ApplyStray));
        self.operator_actions(rules, to);
        if self.may_act() {
            self.person_actions(rules, to);
        }
        if self.next_due().is_some() && !self.is_hurrying() {
            to.push(Action::Advance);
        }
    }

    /// Returns whether anything takes no time.
    fn is_hurrying(&self) -> bool {
        let mut nodes = self.nodes.iter().filter(|node| !node.is_paused);
        let is_prompt = |call: &InFlight| matches!(call.flight, Flight::Prompt);
        nodes.any(|node| {
            let process = node.process.as_ref();
            let calls = process.is_some_and(|process| process.calls.iter().any(is_prompt));
            calls || node.is_due(self.now)
        })
    }

    fn next_due(&self) -> Option<Duration> {
        let nodes = self.nodes.iter().filter_map(|node| node.next_due(self.now));
        let operator = self.operator.as_ref();
        let operator = operator.and_then(|operator| operator.next_due(&self.store, self.now));
        let due = nodes.chain(operator).min();
        let acts = |node: &Arc<Node>| node.is_paused || node.has_plans();
        let acts = self.nodes.iter().any(acts).then(|| self.now + ACT_EVERY - self.phase());
        due.into_iter().chain(acts).min()
    }

    fn app_actions(&self, number: usize, node: &Node, rules: &Rules, to: &mut Vec<Action>) {
        // Apps begin in the order of their nodes: another order would only rename these.
        let has_begun = |node: &Node| node.apps.iter().any(|app| app.tries < rules.tries);
        let before = number.checked_sub(1).map(|before| &self.nodes[before]);
        let in_turn = before.is_none_or(|before| has_begun(before));
        for lock in 0..rules.locks {
            if node.is_paused {
                continue;
            }
            let is_early = self.now.is_zero() || !rules.asks_early;
            if in_turn && is_early && node.can_ask(lock, self.now) {
                to.push(Action::Ask(number, lock));
            }
            let app = &node.apps[lock];
            if matches!(app.phase, Phase::Holding(_)) && node.process.is_some() {
                to.push(Action::End(number, lock));
            }
            if matches!(app.phase, Phase::Asking(..))
                && node.process.is_some()
                && self.left.hang_ups > 0
            {
                to.push(Action::HangUp(number, lock));
            }
        }
    }

    /// Returns whether apps, people and faults act at this time: they do not at each poll of a waiter.
    fn may_act(&self) -> bool {
        self.phase().is_zero()
    }

    /// Returns how long ago it was that apps, people and faults could act.
    fn phase(&self) -> Duration {
        Duration::from_nanos_u128(self.now.as_nanos() % ACT_EVERY.as_nanos())
    }

    fn fault_actions(&self, number: usize, node: &Node, rules: &Rules, to: &mut Vec<Action>) {
        if let Some(Return::WithFile | Return::WithoutFile) = node.down {
            to.push(Action::Restart(number));
        }
        let Some(process) = &node.process else { return };
        if node.is_paused {
            return to.push(Action::Resume(number));
        }
        if self.left.pauses > 0 {
            to.push(Action::Pause(number));
        }
        for (index, call) in process.calls.iter().enumerate() {
            let is_prompt = matches!(call.flight, Flight::Prompt);
            if is_prompt && self.left.late > 0 {
                // A read may as well be sent later.
                if is_write(&call.call) {
                    to.push(Action::DelayRequest(number, index));
                }
                to.push(Action::DelayAnswer(number, index));
            }
            if !is_prompt && self.left.timeouts > 0 && is_write(&call.call) {
                to.push(Action::TimeOut(number, index));
            }
        }
        // A process that has nothing yet may as well crash later.
        if self.left.crashes > 0 && process.core.live().is_some() {
            to.extend(rules.returns.iter().map(|way| Action::Crash(number, *way)));
        }
    }

    fn process_actions(&self, number: usize, node: &Node, to: &mut Vec<Action>) {
        let Some(process) = &node.process else { return };
        if node.is_paused {
            return;
        }
        if !process.events.is_empty() {
            to.push(Action::Report(number));
        }
        for (index, call) in process.calls.iter().enumerate() {
            to.push(match call.flight {
                Flight::Prompt => Action::Call(number, index),
                Flight::LateRequest => Action::Apply(number, index),
                Flight::LateAnswer(_) => Action::Answer(number, index),
            });
        }
    }

    fn operator_actions(&self, rules: &Rules, to: &mut Vec<Action>) {
        let Some(operator) = &self.operator else {
            return;
        };
        for id in operator.observes(&self.store) {
            to.push(Action::Observe(id));
        }
        for id in operator.may_revoke(&self.store, self.now, rules) {
            to.push(Action::Revoke(id));
        }
        let locks = (0..rules.locks).filter(|lock| operator.may_take_over(*lock, self, rules));
        to.extend(locks.map(Action::TakeOver));
    }

    fn person_actions(&self, rules: &Rules, to: &mut Vec<Action>) {
        if self.left.session_deletes > 0 {
            let sessions = self.store.sessions.keys().cloned();
            to.extend(sessions.map(Action::DeleteSession));
        }
        for lock in 0..rules.locks {
            let Some(stored) = self.store.locks.get(&resource(lock)) else {
                continue;
            };
            if self.left.lock_deletes > 0 {
                to.push(Action::DeleteLock(lock));
            }
            if self.left.forces > 0 && stored.value.grant.is_some() {
                to.push(Action::ForceRelease(lock));
            }
        }
        if self.left.restores > 0 {
            to.push(match self.backup {
                None => Action::TakeBackup,
                Some(_) => Action::Restore,
            });
        }
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
        if node.is_done() {
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
            Action::Call(node, index) | Action::Apply(node, index) => {
                let call = self.take_call(node, index);
                let answer = self.apply(call.call, rules);
                self.feed(node, Input::Answer(call.op, answer), rules);
            }
            Action::Answer(node, index) => {
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
        let mut call = call;
        match (&mut call, rules.bug) {
            (
                StoreCall::UpdateSession(current, _),
                Some(Bug::SessionWithoutPrecondition),
            ) => {
                if let Some(found) = store.sessions.get(&current.value.id) {
                    current.version = found.version;
                }
            }
            (StoreCall::UpdateLock(current, _), Some(Bug::LockWithoutPrecondition)) => {
                if let Some(found) = store.locks.get(&current.value.resource) {
                    current.version = found.version;
                }
            }
            _ => {}
        }
        let answer = store.call(call);
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
            Action::ForceRelease(lock) => {
                self.left.forces -= 1;
                self.overridden[*lock] = true;
                operator::force_release(store, &resource(*lock));
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
