//! Which steps can be taken in a state of the world.

use leasehold::protocol::lock::{Decision, Refusal};

use crate::node::{Call, Node, Return, Role};
use crate::rules::Rules;
use crate::world::{Action, Channel, Pace, World};

impl World {
    /// Every step that can be taken now, in a fixed order.
    pub(crate) fn actions(&self, rules: &Rules, to: &mut Vec<Action>) {
        if self.next_due(rules).is_some() {
            to.push(Action::Advance);
        }
        for (index, node) in self.nodes.iter().enumerate() {
            self.session_actions(index, node, rules, to);
            for lock in 0..rules.locks {
                self.app_actions(index, node, lock, rules, to);
                self.lock_actions(index, node, lock, rules, to);
                self.network_actions(index, Channel::Lock(lock), to);
            }
            self.network_actions(index, Channel::Session, to);
            self.crash_actions(index, node, rules, to);
        }
        for stray in 0..self.strays.len() {
            to.extend([Action::ApplyStray(stray), Action::LoseStray(stray)]);
        }
        for lock in 0..rules.locks {
            self.override_actions(lock, rules, to);
        }
        self.store_actions(to);
    }

    fn app_actions(
        &self,
        index: usize,
        node: &Node,
        lock: usize,
        rules: &Rules,
        to: &mut Vec<Action>,
    ) {
        let now = self.now(index);
        let client = &node.clients[lock];
        if node.role == Role::Operator {
            return;
        }
        if node.can_ask(lock, now, rules) {
            to.extend(
                rules
                    .waits
                    .iter()
                    .map(|waits| Action::Ask(index, lock, *waits)),
            );
        }
        if !rules.apps_ask_on && node.can_be_told_more(lock, now, rules) {
            to.push(Action::AskAgain(index, lock));
        }
        let heard = node.is_up() || node.believes(lock, now);
        if client.lease.is_some() && heard {
            to.push(Action::End(index, lock));
        }
        if client.want.is_some() && self.left.hang_ups > 0 {
            to.push(Action::HangUp(index, lock));
        }
        if node.can_give_up(lock, now) {
            to.push(Action::GiveUp(index, lock));
        }
    }

    fn session_actions(&self, index: usize, node: &Node, rules: &Rules, to: &mut Vec<Action>) {
        let now = self.now(index);
        if !node.is_up() || node.role == Role::Operator {
            return;
        }
        // Agents begin in the order of their names; their clocks cover all combinations, so
        // another order would only rename them.
        let before = index.checked_sub(1).map(|before| &self.nodes[before]);
        let in_turn = before.is_none_or(|before| before.sessions_begun > 0 || !before.is_busy());
        if in_turn && node.can_begin(rules) {
            to.extend(
                self.paces(true)
                    .map(|pace| Action::BeginSession(index, pace)),
            );
        }
        if node.can_renew(now, &self.store, rules) {
            to.extend(self.paces(true).map(|pace| Action::Renew(index, pace)));
        }
        if node.has_expired() {
            to.push(Action::NoticeExpiry(index));
        }
        if let Some(live) = &node.live
            && live.call.is_none()
            && live.must_read
        {
            to.extend(
                self.paces(false)
                    .map(|pace| Action::ReadOwnSession(index, pace)),
            );
        }
    }

    fn lock_actions(
        &self,
        index: usize,
        node: &Node,
        lock: usize,
        rules: &Rules,
        to: &mut Vec<Action>,
    ) {
        let now = self.now(index);
        if node.can_look(lock, &self.store, now) {
            to.extend(
                self.paces(false)
                    .map(|pace| Action::ReadLock(index, lock, pace)),
            );
        }
        let rivals = node.rivals_to_look_at(lock, &self.store, now, rules);
        for id in rivals {
            let read = |pace| Action::ReadRival(index, lock, id.clone(), pace);
            to.extend(self.paces(false).map(read));
        }
        let plans = node.plans(lock, now, rules);
        for (intent, _) in plans {
            let write = |pace| Action::Write(index, lock, intent, pace);
            to.extend(self.paces(true).map(write));
        }
        if Self::refuses(node, lock, rules) && node.may_act(now) {
            to.push(Action::Refuse(index, lock));
        }
    }

    /// How a request may travel now; that of a read may as well be sent later.
    fn paces(&self, write: bool) -> impl Iterator<Item = Pace> {
        let late = self.left.late > 0;
        let late_request = (late && write).then_some(Pace::LateRequest);
        let late_answer = late.then_some(Pace::LateAnswer);
        [Pace::AtOnce]
            .into_iter()
            .chain(late_request)
            .chain(late_answer)
    }

    fn refuses(node: &Node, lock: usize, rules: &Rules) -> bool {
        let client = &node.clients[lock];
        let idle = client.call.is_none() && !client.must_read && client.leaving.is_none();
        let asked = client.want.as_ref().filter(|want| idle && !want.waits);
        let read = asked.zip(client.known()).zip(node.session_id());
        read.is_some_and(|((want, (at, stored)), session)| {
            let claim = rules.claim(want.grant.clone(), session.clone());
            stored.acquire(*at, &node.mint(rules), &claim) == Decision::Refused(Refusal::Held)
        })
    }

    fn network_actions(&self, index: usize, channel: Channel, to: &mut Vec<Action>) {
        let up = self.nodes[index].is_up();
        let given_up = match self.call(index, channel) {
            None => return,
            Some(Call::Sent(_)) => {
                to.push(Action::Apply(index, channel));
                true
            }
            Some(Call::Answered { of_write, .. }) => {
                if up {
                    to.push(Action::Answer(index, channel));
                }
                *of_write
            }
        };
        if up && given_up && self.left.timeouts > 0 {
            to.push(Action::TimeOut(index, channel));
        }
    }

    fn crash_actions(&self, index: usize, node: &Node, rules: &Rules, to: &mut Vec<Action>) {
        match node.down {
            Some(way) if way != Return::Never => to.push(Action::Restart(index)),
            // A process with nothing to lose may as well crash when it has something.
            None if self.left.crashes > 0 && node.live.is_some() => {
                let crash = |way: &Return| Action::Crash(index, *way);
                to.extend(rules.returns.iter().map(crash));
            }
            Some(_) | None => {}
        }
    }

    fn override_actions(&self, lock: usize, rules: &Rules, to: &mut Vec<Action>) {
        if rules.fenced_writes {
            let given = self.ledgers[lock].given.len();
            to.extend((0..given).map(|write| Action::WriteFenced(lock, write)));
        }
        let Some((_, stored)) = &self.store.locks[lock] else {
            return;
        };
        if self.left.lock_deletes > 0 {
            to.push(Action::DeleteLock(lock));
        }
        if stored.grant.is_some() && self.left.forces > 0 {
            to.push(Action::ForceRelease(lock));
        }
        let below = u128::from(stored.token.get()) < self.store.revision.scale();
        if stored.grant.is_none() && below && self.left.tidies > 0 {
            to.push(Action::TidyUp(lock));
        }
    }

    fn store_actions(&self, to: &mut Vec<Action>) {
        if self.left.session_deletes > 0 {
            to.extend(
                self.store
                    .sessions
                    .keys()
                    .cloned()
                    .map(Action::DeleteSession),
            );
        }
        if self.left.restores > 0 {
            to.push(match self.backup {
                None => Action::TakeBackup,
                Some(_) => Action::Restore,
            });
        }
    }
}
