//! What a step does.

use std::sync::Arc;

use leasehold::protocol::incident::IncidentKind;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::session::KeepAlive;
use leasehold::protocol::token::{Mint, Revision, Seen};

use crate::bugs::Bug;
use crate::lock_client::Intent;
use crate::lock_history::Violation;
use crate::node::{Call, LockClient, Return};
use crate::rules::Rules;
use crate::session::Outcome;
use crate::store::{Answer, Precondition, Store, Write};
use crate::world::{Action, Channel, Pace, World};

/// How far the runbook raises the revision of a restored store.
const BUMP: u64 = 1_000_000_000;

impl World {
    /// The world after a step; none when nothing changed.
    pub(crate) fn after(&self, action: &Action, rules: &Rules) -> Option<Self> {
        let mut next = self.clone();
        if let Err(flaw) = next.step(action, rules) {
            next.flaws.insert(flaw);
        }
        next.forget();
        next.strays.sort_by_cached_key(|write| format!("{write:?}"));
        (next != *self).then_some(next)
    }

    /// What can no longer matter is forgotten, so that states which cannot behave differently
    /// are one state.
    fn forget(&mut self) {
        let pending = !self.strays.is_empty();
        for node in &mut self.nodes {
            let session = node.live.as_ref().map(|live| &live.id);
            let named = self.store.locks.iter().flatten().any(|(_, lock)| {
                let mut waiters = lock.waiters.entries().iter();
                lock.holder_session() == session
                    || session.is_some_and(|id| waiters.any(|w| w.claimant.session == *id))
            });
            node.forget(named || pending);
        }
    }

    fn step(&mut self, action: &Action, rules: &Rules) -> Result<(), Violation> {
        match action {
            Action::Advance => {
                self.advance(rules);
                Ok(())
            }
            Action::Ask(..) | Action::AskAgain(..) | Action::End(..) | Action::HangUp(..) => {
                self.app_step(action, rules)
            }
            Action::BeginSession(node, pace)
            | Action::Renew(node, pace)
            | Action::ReadOwnSession(node, pace) => {
                self.session_step(action, rules);
                self.travel(*node, Channel::Session, *pace, rules)
            }
            Action::ReadLock(node, lock, pace)
            | Action::ReadRival(node, lock, _, pace)
            | Action::Write(node, lock, _, pace) => {
                self.lock_step(action, rules);
                self.travel(*node, Channel::Lock(*lock), *pace, rules)
            }
            Action::NoticeExpiry(node) => {
                self.session_over(*node, rules);
                Ok(())
            }
            Action::Refuse(node, lock) => {
                self.nodes[*node].clients[*lock].want = None;
                Ok(())
            }
            Action::GiveUp(node, lock) => {
                self.nodes[*node].give_up(*lock);
                Ok(())
            }
            Action::Answer(node, channel) => self.answered(*node, *channel, rules),
            Action::WriteFenced(lock, write) => {
                let history = &mut self.ledgers[*lock];
                history.fenced_write(history.given[*write])
            }
            _ => {
                self.fault_step(action, rules);
                Ok(())
            }
        }
    }

    /// Time advances to the next deadline. A session with a passed deadline is over: its agent can do nothing with
    /// it, so it does not matter when it notices. It matters only while a renewal is unanswered: the answer may come
    /// before the agent reads its clock.
    fn advance(&mut self, rules: &Rules) {
        let real = self.next_due(rules).expect("only then is it a step");
        for node in 0..self.nodes.len() {
            self.nodes[node].elapse(real, rules);
            if self.nodes[node].outlasts(&self.store, rules) {
                self.renew_meanwhile(node, rules);
            } else if self.nodes[node].has_expired_for_good() {
                self.session_over(node, rules);
            }
        }
    }

    /// The renewals that a waiter made while time passed, the last of them just now.
    fn renew_meanwhile(&mut self, node: usize, rules: &Rules) {
        let now = self.now(node);
        self.nodes[node].renewals_left += 1;
        self.nodes[node].renew(now, rules);
        self.arrive(node, Channel::Session);
        self.answered(node, Channel::Session, rules)
            .expect("a waiter is told nothing");
    }

    fn app_step(&mut self, action: &Action, rules: &Rules) -> Result<(), Violation> {
        match *action {
            Action::Ask(node, lock, waits) => {
                let now = self.now(node);
                self.nodes[node].ask(lock, waits, now, rules, &mut self.ledgers[lock])
            }
            Action::AskAgain(node, lock) => {
                let now = self.now(node);
                self.nodes[node].tell_again(lock, now, rules)
            }
            Action::End(node, lock) => {
                self.nodes[node].end(lock);
                Ok(())
            }
            Action::HangUp(node, lock) => {
                self.left.hang_ups -= 1;
                self.nodes[node].hang_up(lock);
                Ok(())
            }
            _ => unreachable!("{action:?} is not an app's"),
        }
    }

    fn session_step(&mut self, action: &Action, rules: &Rules) {
        match *action {
            Action::BeginSession(node, _) => {
                let (now, listed) = (self.now(node), self.store.revision);
                self.nodes[node].begin(node, now, listed, rules);
            }
            Action::Renew(node, _) => {
                let now = self.now(node);
                self.nodes[node].renew(now, rules);
            }
            Action::ReadOwnSession(node, _) => {
                let live = self.nodes[node].live.as_mut().expect("it has one");
                live.must_read = true;
                live.call = Some(Call::Answered {
                    answer: self.store.read_session(&live.id),
                    of_write: false,
                });
            }
            _ => unreachable!("{action:?} is not a session's"),
        }
    }

    fn lock_step(&mut self, action: &Action, rules: &Rules) {
        match action {
            Action::ReadLock(node, lock, _) => {
                let client = &mut self.nodes[*node].clients[*lock];
                client.call = Some(Call::Answered {
                    answer: self.store.read_lock(*lock),
                    of_write: false,
                });
            }
            Action::ReadRival(node, lock, id, _) => {
                self.nodes[*node].clients[*lock].call = Some(Call::Answered {
                    answer: self.store.read_session(id),
                    of_write: false,
                });
            }
            Action::Write(node, lock, intent, _) => {
                let plans = self.nodes[*node].plans(*lock, self.now(*node), rules);
                let plan = plans.into_iter().find(|(planned, _)| planned == intent);
                let client = &mut self.nodes[*node].clients[*lock];
                client.call = plan.map(|(_, write)| Call::Sent(write));
                let reused = rules.bug == Some(Bug::GrantReusedAfterRelease);
                if let (Intent::Release, Some(tenure), false) = (intent, &mut client.tenure, reused)
                {
                    tenure.release_sent();
                }
            }
            _ => unreachable!("{action:?} is not about a lock"),
        }
    }

    /// Sends a request on its way: to its end, or to where it is late.
    fn travel(
        &mut self,
        node: usize,
        channel: Channel,
        pace: Pace,
        rules: &Rules,
    ) -> Result<(), Violation> {
        if pace != Pace::AtOnce {
            self.left.late -= 1;
        }
        if pace != Pace::LateRequest {
            self.arrive(node, channel);
        }
        match pace {
            Pace::AtOnce => self.answered(node, channel, rules),
            Pace::LateRequest | Pace::LateAnswer => Ok(()),
        }
    }

    /// A write reaches the store; a read has been there.
    fn arrive(&mut self, node: usize, channel: Channel) {
        let Some(Call::Sent(write)) = self.call(node, channel).cloned() else {
            return;
        };
        let call = Some(Call::Answered {
            answer: self.apply(&write),
            of_write: true,
        });
        match channel {
            Channel::Session => self.nodes[node].live.as_mut().expect("it sent").call = call,
            Channel::Lock(lock) => self.nodes[node].clients[lock].call = call,
        }
    }

    fn answered(&mut self, node: usize, channel: Channel, rules: &Rules) -> Result<(), Violation> {
        let now = self.now(node);
        let Some(Call::Answered { answer, .. }) = self.take_call(node, channel) else {
            unreachable!("an answer was on its way");
        };
        match channel {
            Channel::Session => {
                let outcome = self.nodes[node].session_answered(answer, now, rules);
                if outcome == Outcome::Over || self.nodes[node].has_expired_for_good() {
                    self.session_over(node, rules);
                }
                if rules.apps_ask_on {
                    self.nodes[node].tell_all_again(now, rules)?;
                }
                Ok(())
            }
            Channel::Lock(lock) => {
                let of_lock = matches!(answer, Answer::Lock(_));
                self.nodes[node].lock_answered(lock, answer, now, rules);
                if of_lock {
                    self.nodes[node].settle(lock, now, rules, &mut self.ledgers[lock])?;
                }
                Ok(())
            }
        }
    }

    fn session_over(&mut self, node: usize, rules: &Rules) {
        let on_its_way = self.nodes[node].session_over(rules);
        self.strays.extend(on_its_way);
    }

    fn take_call(&mut self, node: usize, channel: Channel) -> Option<Call> {
        let node = &mut self.nodes[node];
        match channel {
            Channel::Session => node.live.as_mut()?.call.take(),
            Channel::Lock(lock) => node.clients[lock].call.take(),
        }
    }

    fn fault_step(&mut self, action: &Action, rules: &Rules) {
        match action {
            Action::Apply(node, channel) => self.arrive(*node, *channel),
            Action::TimeOut(node, channel) => {
                self.left.timeouts -= 1;
                if let Some(Call::Sent(write)) = self.take_call(*node, *channel) {
                    self.strays.push(write);
                }
                match channel {
                    Channel::Session => {
                        let session = self.nodes[*node].live.as_mut().expect("it sent");
                        // A resuming process tries again, on the same version.
                        session.must_read = !session.resuming;
                    }
                    Channel::Lock(lock) => self.nodes[*node].clients[*lock].must_read = true,
                }
            }
            Action::ApplyStray(stray) => {
                let write = self.strays.remove(*stray);
                self.apply(&write);
            }
            Action::LoseStray(stray) => {
                self.strays.remove(*stray);
            }
            Action::Crash(node, way) => self.crash(*node, *way),
            Action::Restart(node) => self.restart(*node),
            _ => self.override_step(action, rules),
        }
    }

    fn apply(&mut self, write: &Write) -> Answer {
        let lock = match write {
            Write::Lock { lock, .. } | Write::Join { lock, .. } => Some(*lock),
            Write::Session { .. } => None,
        };
        let before = lock.and_then(|lock| self.store.locks[lock].clone());
        let answer = self.store.apply(write);
        if let (Some(lock), Answer::Lock(Some((_, written)))) = (lock, &answer) {
            self.ledgers[lock].written(written);
            if before.is_some_and(|(_, before)| !follows(&before, written)) {
                self.flaws.insert(Violation::UnsoundWrite);
            }
        }
        answer
    }

    /// Returns whether this step is a join that lands although its grant was released before: one without a caller,
    /// under an id that was already served.
    pub(crate) fn join_after_its_turn(&self, action: &Action) -> Option<&'static str> {
        let Action::ApplyStray(stray) = action else {
            return None;
        };
        let Write::Join { lock, waiter } = &self.strays[*stray] else {
            return None;
        };
        let (_, stored) = self.store.locks[*lock].as_ref()?;
        let mut issued = self.ledgers[*lock].issued.iter();
        let had_its_turn = issued.any(|(grant, _)| *grant == waiter.grant);
        let lands = had_its_turn && stored.joined_by(waiter.clone()).is_some();
        lands.then_some("join after its turn")
    }

    /// What is only in memory is lost; what was sent is still under way.
    fn crash(&mut self, index: usize, way: Return) {
        self.left.crashes -= 1;
        let node = &mut self.nodes[index];
        node.down = Some(way);
        node.seen = None;
        let told = node.keep().map(KeepAlive::valid_until);
        let mut calls: Vec<Option<Call>> = Vec::new();
        for client in &mut node.clients {
            let before = std::mem::replace(client, LockClient::idle());
            calls.push(before.call);
            if way == Return::WithState {
                client.spent = before.tenure.is_some();
                client.leaving = before.leaving.filter(|_| client.spent);
                client.tenure = before.tenure;
                client.lease = before.lease;
            }
        }
        match &mut node.live {
            Some(live) if way.has_state() && live.keep.is_some() => {
                calls.push(live.call.take());
                live.keep = None;
                if way != Return::WithState {
                    node.promised = told;
                }
                live.first_sent = None;
                live.resuming = true;
                live.must_read = false;
            }
            live => calls.extend(live.take().map(|live| live.call)),
        }
        let sent = calls.into_iter().flatten().filter_map(|call| match call {
            Call::Sent(write) => Some(write),
            Call::Answered { .. } => None,
        });
        self.strays.extend(sent);
    }

    fn restart(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        node.down = None;
        node.note_list(self.store.revision);
        if node.live.is_none() {
            node.clients.iter_mut().for_each(LockClient::drop_tenure);
        }
    }

    fn override_step(&mut self, action: &Action, rules: &Rules) {
        match action {
            Action::DeleteSession(id) => {
                self.left.session_deletes -= 1;
                self.store.delete_session(id);
            }
            Action::DeleteLock(lock) => {
                self.left.lock_deletes -= 1;
                self.ledgers[*lock].overridden = true;
                self.store.delete_lock(*lock);
            }
            Action::TidyUp(lock) => {
                self.left.tidies -= 1;
                self.store.delete_lock(*lock);
            }
            Action::ForceRelease(lock) => self.force_release(*lock, rules),
            Action::TakeBackup => self.backup = Some(Arc::new(self.store.clone())),
            Action::Restore => self.restore(),
            _ => unreachable!("{action:?} overrides nothing"),
        }
    }

    /// The operator carries out a forced release: the grant ends, and the first waiter is next.
    fn force_release(&mut self, lock: usize, rules: &Rules) {
        self.left.forces -= 1;
        self.ledgers[lock].overridden = true;
        let mint = Mint {
            seen: Seen::from_list(self.store.revision),
            floor: 0,
        };
        let (at, stored) = self.store.locks[lock].as_ref().expect("it is held");
        let holder = stored.holder_session().expect("it is held");
        let ending = rules.ending(IncidentKind::ForceReleased);
        let value = stored
            .take_over(*at, &mint, |who| who.session == *holder, &ending, None)
            .expect("its holder was named");
        self.apply(&Write::Lock {
            lock,
            given: Precondition::At(*at),
            value: value.into(),
        });
    }

    /// The objects come back as they were, at their old revisions; only the store's is raised.
    fn restore(&mut self) {
        self.left.restores -= 1;
        let backup = self.backup.as_ref().expect("there is a backup");
        self.store = Store::clone(backup);
        self.store.revision = Revision(backup.revision.0 + BUMP);
        for history in &mut self.ledgers {
            history.overridden = true;
        }
    }
}

/// What the API server demands of a lock's next version: the token never goes back, and a new
/// grant has a larger one.
fn follows(before: &Lock, written: &Lock) -> bool {
    let granted_anew = written
        .grant
        .as_ref()
        .is_some_and(|grant| !before.names_grant(&grant.id));
    written.token > before.token || (written.token == before.token && !granted_anew)
}
