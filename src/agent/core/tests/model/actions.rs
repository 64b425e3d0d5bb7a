//! Which steps can be taken in a state of the world.

use std::sync::Arc;

use super::node::{Flight, InFlight, Node, Phase, is_write, resource};
use super::operator;
use super::rules::{Return, Rules, TTL_SECONDS};
use super::world::World;
use super::*;

/// How often apps, people and faults act: at the time of each renewal, and after each deadline.
const ACT_EVERY: Duration = Duration::from_secs(TTL_SECONDS / 3);
/// After that no app asks because of the time.
pub(super) const LATEST_ASK: Duration = Duration::from_secs(TTL_SECONDS);

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
    /// The operator deletes a lock that is free.
    TidyUp(usize),
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

impl World {
    pub(super) fn actions(&self, rules: &Rules, to: &mut Vec<Action>) {
        if self.urgent_actions(to) {
            return;
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
        if !self.is_hurrying() && self.next_due().is_some() {
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

    pub(super) fn next_due(&self) -> Option<Duration> {
        let nodes = self.nodes.iter().filter_map(|node| node.next_due(self.now));
        let operator = self.operator.as_ref();
        let operator = operator.and_then(|operator| operator.next_due(&self.store, self.now));
        let due = nodes.chain(operator).min();
        let acts = |node: &Arc<Node>| node.is_paused || node.has_plans();
        let acts = self
            .nodes
            .iter()
            .any(acts)
            .then(|| self.now + ACT_EVERY.saturating_sub(self.phase()));
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
            let is_early = self.now <= rules.asks_until || node.apps[lock].has_ended;
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

    /// Adds what comes before all else at a time: a timer, a read, the operator's own read. Each changes
    /// one node alone, and is the same as if its node had been a little faster than the others.
    fn urgent_actions(&self, to: &mut Vec<Action>) -> bool {
        let running = || {
            let nodes = self.nodes.iter().enumerate();
            nodes.filter(|(_, node)| !node.is_paused)
        };
        if let Some((number, _)) = running().find(|(_, node)| node.is_due(self.now)) {
            to.push(Action::Timer(number));
            return true;
        }
        for (number, node) in running() {
            let calls = node.process.iter().flat_map(|process| &process.calls);
            let mut reads = calls
                .enumerate()
                .filter(|(_, call)| matches!(call.flight, Flight::Prompt) && !is_write(&call.call));
            if let Some((index, _)) = reads.next() {
                to.push(Action::Call(number, index));
                let may_be_late = self.left.late > 0 && self.may_act();
                to.extend(may_be_late.then_some(Action::DelayAnswer(number, index)));
                return true;
            }
        }
        let operator = self.operator.as_ref();
        let observed = operator.and_then(|operator| operator.observes(&self.store).pop());
        to.extend(observed.map(Action::Observe));
        !to.is_empty()
    }

    /// Returns whether apps, people and faults act at this time: they do not at each poll of a waiter.
    fn may_act(&self) -> bool {
        self.phase().is_zero()
    }

    /// Returns how long ago it was that apps, people and faults could act.
    pub(super) fn phase(&self) -> Duration {
        Duration::from_nanos_u128(self.now.as_nanos() % ACT_EVERY.as_nanos())
    }

    fn fault_actions(&self, number: usize, node: &Node, rules: &Rules, to: &mut Vec<Action>) {
        if let Some(Return::WithFile | Return::WithOlderFile | Return::WithoutFile) = node.down {
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
            let is_late = !matches!(call.flight, Flight::Prompt);
            if is_late && self.left.timeouts > 0 && is_write(&call.call) {
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
        if node.has_event() {
            to.push(Action::Report(number));
        }
        for (index, call) in process.calls.iter().enumerate() {
            match call.flight {
                Flight::Prompt if node.is_paused => {}
                Flight::Prompt => {
                    if self.left.late > 0 {
                        to.push(Action::DelayRequest(number, index));
                        to.push(Action::DelayAnswer(number, index));
                    }
                    to.push(Action::Call(number, index));
                }
                Flight::LateRequest => to.push(Action::Apply(number, index)),
                Flight::LateAnswer(_) => to.push(Action::Answer(number, index)),
            }
        }
    }

    fn operator_actions(&self, rules: &Rules, to: &mut Vec<Action>) {
        let Some(operator) = &self.operator else {
            return;
        };
        for id in operator.may_revoke(&self.store, self.now, rules) {
            to.push(Action::Revoke(id));
        }
        let locks = (0..rules.locks).filter(|lock| operator.may_take_over(*lock, self));
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
            if self.left.tidies > 0 && operator::may_tidy_up(&self.store, &stored.value) {
                to.push(Action::TidyUp(lock));
            }
        }
        if self.left.restores > 0 {
            to.push(match self.backup {
                None => Action::TakeBackup,
                Some(_) => Action::Restore,
            });
        }
    }
}
