//! What the store still has of grants that are over: releases, leftovers of claims, and leases whose
//! loss is not explained yet.

use std::collections::{BTreeMap, VecDeque};

use crate::protocol::ids::{GrantId, LeaseId, Resource};
use crate::protocol::key::GrantKey;
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;
use crate::protocol::time::Moment;

use super::effect::{Answer, CallId, Effect, OpId};
use super::env::{Env, Machine};
use super::history::{End, EndedLease, History, RequestKey};
use super::leftover::{self, Leftover, Uncertain};
use super::lost::{LostLease, Read};
use super::release::{self, Release, ReleaseOf};
use super::session::Live;

/// How many grants of lost sessions are released at a time: there may be thousands.
const LOST_AT_A_TIME: usize = 16;

/// Grants that are over and that the store may still have.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct Releases {
    running: BTreeMap<GrantId, Release>,
    /// Grants of lost sessions, oldest first, whose turn has not come.
    waiting: VecDeque<ReleaseOf>,
    leftovers: BTreeMap<GrantId, Leftover>,
    lost: BTreeMap<LeaseId, (GrantId, LostLease)>,
    /// Losses that were explained, as far as a lock was read.
    explained: Vec<(LeaseId, Read)>,
    /// When `timer` has something to do, and how many of `running` are of lost sessions: known without
    /// a look at all of them, because each answer about a lease asks.
    timeout: Option<Moment>,
    of_lost_sessions: usize,
}

/// What an outcome is recorded in.
pub(super) struct Record<'a> {
    pub(super) history: &'a mut History,
    pub(super) session: Option<&'a Live>,
}

impl Releases {
    /// Returns whether this grant is over, and the store may still have it.
    pub(in crate::agent) fn has(&self, grant: &GrantId) -> bool {
        self.running.contains_key(grant)
            || self.leftovers.contains_key(grant)
            || self.lost.values().any(|(lost, _)| lost == grant)
    }

    /// Returns how many need the session; those of lost sessions do not.
    pub(in crate::agent) fn len(&self) -> usize {
        let releases = self.running.len() - self.of_lost_sessions;
        releases + self.leftovers.len() + self.lost.len()
    }

    /// Returns how many of them wait for a promise of an earlier process to pass.
    pub(in crate::agent) fn held_back(&self) -> usize {
        self.running
            .values()
            .filter_map(Release::held_until)
            .count()
    }

    /// Returns when the last of these promises passes.
    pub(in crate::agent) fn promised_until(&self) -> Moment {
        let until = self.running.values().filter_map(Release::held_until);
        until.max().unwrap_or_default()
    }

    /// Returns the end of a lease that is in the history, as it is to be persisted once more.
    pub(in crate::agent) fn past_end_record(
        &self,
        lease: &LeaseId,
        end: End,
        request: Option<&RequestKey>,
    ) -> EndedLease {
        let release = lease.grant().and_then(|grant| self.running.get(&grant));
        let is_held_back = release.is_some_and(|release| release.held_until().is_some());
        EndedLease {
            lease: lease.clone(),
            end,
            may_release: end == End::Releasing && !is_held_back,
            request: request.cloned(),
        }
    }

    /// Begins to release a grant; answers the requests once that has ended.
    pub(super) fn release(
        &mut self,
        what: ReleaseOf,
        requests: Vec<CallId>,
        record: &mut Record,
        env: &mut Env,
    ) {
        self.begin(what, requests, record, env);
        self.update();
    }

    fn begin(
        &mut self,
        what: ReleaseOf,
        requests: Vec<CallId>,
        record: &mut Record,
        env: &mut Env,
    ) {
        if what.give_up_at.is_some() {
            self.waiting.push_back(what);
            return self.start_waiting(record, env);
        }
        let grant = what.grant.id.clone();
        self.leftovers.remove(&grant);
        if let Some(release) = self.running.get_mut(&grant) {
            return release.join(requests);
        }
        self.running
            .insert(grant.clone(), Release::new(what, requests));
        self.release_if_due(&grant, record, env);
    }

    /// Looks for what the store may have for a claim.
    pub(super) fn look_for_leftover(
        &mut self,
        resource: Resource,
        grant: GrantKey,
        uncertain: Option<Uncertain>,
        env: &mut Env,
    ) {
        let id = grant.id.clone();
        // A release of that grant finds it, too.
        if !self.running.contains_key(&id) {
            let leftover = self.leftovers.entry(id);
            let leftover =
                leftover.or_insert_with(|| Leftover::new(resource, grant, None, env.now));
            leftover.join(uncertain);
            leftover.timer(env);
        }
        self.update();
    }

    /// Looks up why a lease is over.
    pub(super) fn explain(
        &mut self,
        lease: LeaseId,
        grant: GrantId,
        resource: Resource,
        env: &mut Env,
    ) {
        let lost = LostLease::new(lease.clone(), resource, env);
        self.lost.insert(lease, (grant, lost));
        self.update();
    }

    /// Ends every wait for a promise of an earlier process: the apps have ended.
    pub(super) fn release_now(&mut self, now: Moment) {
        for release in self.running.values_mut() {
            release.release_now(now);
        }
        self.update();
    }

    /// Records a lock with one of these grants, as the watch reported it. Returns whether it is one.
    pub(in crate::agent) fn observe(&mut self, grant: &GrantId, stored: &Stored<Lock>) -> bool {
        if let Some(release) = self.running.get_mut(grant) {
            release.observe(stored.clone());
        }
        self.has(grant)
    }

    /// Returns when `timer` has something to do.
    pub(super) const fn timeout(&self) -> Option<Moment> {
        self.timeout
    }

    fn update(&mut self) {
        let releases = self.running.values().filter_map(Release::timeout);
        let leftovers = self.leftovers.values().filter_map(Leftover::timeout);
        let lost = self.lost.values().map(|(_, lost)| lost.timeout());
        let next = self.next_waiting().map(|next| next.not_before);
        self.timeout = releases.chain(leftovers).chain(lost).chain(next).min();
        self.of_lost_sessions = self.count_of_lost_sessions();
    }

    /// Does what is due.
    pub(super) fn timer(&mut self, record: &mut Record, env: &mut Env) {
        self.do_due(record, env);
        self.update();
    }

    fn do_due(&mut self, record: &mut Record, env: &mut Env) {
        let is_due = |release: &Release| release.timeout().is_some_and(|at| env.now >= at);
        let due = self.running.iter().filter(|(_, release)| is_due(release));
        let due: Vec<GrantId> = due.map(|(grant, _)| grant.clone()).collect();
        for grant in &due {
            self.release_if_due(grant, record, env);
        }
        self.start_waiting(record, env);
        for leftover in self.leftovers.values_mut() {
            leftover.timer(env);
        }
        let leases: Vec<LeaseId> = self.lost.keys().cloned().collect();
        for lease in leases {
            let lost = self.lost.get_mut(&lease);
            let read = lost.and_then(|(_, lost)| lost.timer(env));
            self.record_explained(lease, read);
        }
    }

    /// Takes the answer to a call of one of its machines.
    pub(super) fn answered(
        &mut self,
        machine: Machine,
        op: OpId,
        answer: Answer,
        record: &mut Record,
        env: &mut Env,
    ) {
        self.take_answer(machine, op, answer, record, env);
        self.update();
    }

    fn take_answer(
        &mut self,
        machine: Machine,
        op: OpId,
        answer: Answer,
        record: &mut Record,
        env: &mut Env,
    ) {
        match machine {
            Machine::Release(grant) => {
                let release = self.running.get_mut(&grant);
                let outcome = release.and_then(|release| release.answered(op, answer, env));
                self.released(&grant, outcome, record, env);
                self.start_waiting(record, env);
            }
            Machine::Leftover(grant) => {
                let leftover = self.leftovers.get_mut(&grant);
                let outcome = leftover.and_then(|leftover| leftover.answered(op, answer, env));
                let Some(outcome) = outcome else { return };
                self.leftovers.remove(&grant);
                env.out.push(Effect::SomethingEnded);
                if let leftover::Outcome::Granted(what) = outcome {
                    self.running
                        .insert(grant.clone(), Release::new(*what, Vec::new()));
                    self.release_if_due(&grant, record, env);
                }
            }
            Machine::Lost(lease) => {
                let lost = self.lost.get_mut(&lease);
                let read = lost.and_then(|(_, lost)| lost.answered(op, answer, env));
                self.record_explained(lease, read);
            }
            Machine::Session
            | Machine::Ending
            | Machine::Watch
            | Machine::WarmPoll
            | Machine::Claim(_) => {}
        }
    }

    fn release_if_due(&mut self, grant: &GrantId, record: &mut Record, env: &mut Env) {
        let Some(release) = self.running.get_mut(grant) else {
            return;
        };
        let outcome = release.timer(env);
        self.released(grant, outcome, record, env);
    }

    /// Begins the releases of lost sessions whose turn has come.
    fn start_waiting(&mut self, record: &mut Record, env: &mut Env) {
        while self
            .next_waiting()
            .is_some_and(|next| env.now >= next.not_before)
        {
            let Some(what) = self.waiting.pop_front() else {
                return;
            };
            let grant = what.grant.id.clone();
            self.running
                .insert(grant.clone(), Release::new(what, Vec::new()));
            self.release_if_due(&grant, record, env);
        }
    }

    fn next_waiting(&self) -> Option<&ReleaseOf> {
        let next = self.waiting.front()?;
        (self.count_of_lost_sessions() < LOST_AT_A_TIME).then_some(next)
    }

    fn count_of_lost_sessions(&self) -> usize {
        let releases = self.running.values();
        releases
            .filter(|release| release.is_of_lost_session())
            .count()
    }

    /// Records what became of a release.
    fn released(
        &mut self,
        grant: &GrantId,
        outcome: Option<release::Outcome>,
        record: &mut Record,
        env: &mut Env,
    ) {
        let Some(outcome) = outcome else { return };
        let Some(release) = self.running.remove(grant) else {
            return;
        };
        env.out.push(Effect::SomethingEnded);
        let Some(ending) = release.ending() else {
            return;
        };
        let loss = match outcome {
            release::Outcome::Abandoned => return,
            release::Outcome::Released => None,
            release::Outcome::WasGone(lock) => {
                let live = record.session.filter(|live| *live.id() == ending.session);
                ending.loss(lock.as_deref(), live.map(Live::valid_until), env)
            }
        };
        let end = loss.map_or(End::Released, End::Lost);
        record.history.release_ended(&ending.lease, end);
    }

    fn record_explained(&mut self, lease: LeaseId, read: Option<Read>) {
        if let Some(read) = read {
            self.lost.remove(&lease);
            self.explained.push((lease, read));
        }
    }

    /// Takes the losses that were explained since.
    pub(super) fn take_explained(&mut self) -> Vec<(LeaseId, Read)> {
        std::mem::take(&mut self.explained)
    }
}
