//! The operator of a world: it revokes silent sessions and takes over their locks, by the protocol's own
//! functions. What the operator decides beyond that is tested beside it.

use std::collections::{BTreeMap, BTreeSet};

use super::actions::Action;
use super::node::NodeClock;
use super::node::resource;
use super::rules::{Bug, Rules};
use super::world::World;
use super::*;
use crate::agent::core::tests::store::Store;
use crate::protocol::incident::{Ending, IncidentKind};
use crate::protocol::observed::{Observed, Sight, Verdict};
use crate::protocol::session::{Claimant, Session};
use crate::protocol::token::{LEASES_PER_GRANT, Mint, Seen};

#[derive(Clone, Debug)]
pub(super) struct Operator {
    pub(super) clock: NodeClock,
    observed: BTreeMap<SessionId, Observed>,
}

impl Operator {
    pub(super) fn new(number: usize, is_fast: bool, bug: Option<Bug>) -> Self {
        Self {
            clock: NodeClock::new(number, is_fast, bug),
            observed: BTreeMap::new(),
        }
    }

    /// Returns the sessions of which a read would say something new.
    pub(super) fn observes(&self, store: &Store) -> Vec<SessionId> {
        let named = named(store).into_iter();
        let is_new = |id: &SessionId| {
            let again = Observed::join(
                self.observed.get(id).copied(),
                sight(store, id),
                Moment::default(),
            );
            self.observed.get(id) != Some(&again)
        };
        named.filter(is_new).collect()
    }

    fn verdict(&self, id: &SessionId, now: Duration) -> Option<Verdict> {
        let ttl = SessionTtl::clamped(rules::TTL_SECONDS);
        let observed = self.observed.get(id)?;
        Some(observed.verdict(ttl, self.clock.at(now)))
    }

    pub(super) fn may_revoke(&self, store: &Store, now: Duration, rules: &Rules) -> Vec<SessionId> {
        let named = named(store).into_iter();
        let may_revoke = |id: &SessionId| match self.verdict(id, now) {
            Some(Verdict::MayRevoke(version)) => {
                let found = store.sessions.get(id);
                found.is_some_and(|found| found.version == version)
            }
            Some(Verdict::MayLive { .. }) => {
                let is_there = matches!(sight(store, id), Sight::Version(_));
                rules.bug == Some(Bug::RevokedAtOnce) && is_there
            }
            Some(Verdict::Dead) | None => false,
        };
        named.filter(may_revoke).collect()
    }

    pub(super) fn may_take_over(&self, lock: usize, world: &World) -> bool {
        let stored = world.store.locks.get(&resource(lock));
        let holder = stored.and_then(|stored| stored.value.holder_session());
        let verdict = holder.and_then(|holder| self.verdict(holder, world.now));
        verdict == Some(Verdict::Dead)
    }

    /// Returns when it may do something after now.
    pub(super) fn next_due(&self, store: &Store, now: Duration) -> Option<Duration> {
        let named = named(store).into_iter();
        let due = named.filter_map(|id| match self.verdict(&id, now)? {
            Verdict::MayLive { until } => Some(self.clock.real(until)),
            Verdict::MayRevoke(_) | Verdict::Dead => None,
        });
        due.min()
    }

    pub(super) fn step(&mut self, action: &Action, store: &mut Store, now: Duration) {
        match action {
            Action::Observe(id) => {
                let named = named(store);
                self.observed.retain(|id, _| named.contains(id));
                let before = self.observed.get(id).copied();
                let observed = Observed::join(before, sight(store, id), self.clock.at(now));
                self.observed.insert(id.clone(), observed);
            }
            Action::Revoke(id) => {
                if let Some(found) = store.sessions.get(id) {
                    let session = revoked(&found.value, RevokeReason::Expired);
                    store.write_session(session);
                }
            }
            Action::TakeOver(lock) => self.take_over(&resource(*lock), store, now),
            _ => {}
        }
    }

    fn take_over(&self, resource: &Resource, store: &mut Store, now: Duration) {
        let Some(lock) = store.locks.get(resource) else {
            return;
        };
        let holder = lock.value.holder_session().cloned();
        let is_dead = |who: &Claimant| {
            Some(&who.session) == holder.as_ref()
                || self.verdict(&who.session, now) == Some(Verdict::Dead)
        };
        let ending = ending(IncidentKind::Expired);
        let next = lock
            .value
            .take_over(lock.version, &mint(store), is_dead, &ending, None);
        if let Some(next) = next {
            store.write_lock(next);
        }
    }
}

/// A person's forced release, as the operator carries it out.
pub(super) fn force_release(store: &mut Store, resource: &Resource) {
    let Some(lock) = store.locks.get(resource) else {
        return;
    };
    let Some(grant) = &lock.value.grant else {
        return;
    };
    let ending = ending(IncidentKind::ForceReleased);
    let mint = mint(store);
    let next = lock
        .value
        .force_release(lock.version, &mint, &grant.id, |_| false, &ending);
    if let Some(next) = next {
        store.write_lock(next);
    }
}

/// Returns whether the operator may delete a lock: the tokens of a new lock must be larger.
pub(super) fn may_tidy_up(store: &Store, lock: &Lock) -> bool {
    let last = u128::from(lock.token.get()) + u128::from(LEASES_PER_GRANT);
    lock.grant.is_none() && last <= Revision(store.revision).scale()
}

fn mint(store: &Store) -> Mint {
    Mint {
        seen: Seen::from_list(Revision(store.revision)),
        floor: 0,
    }
}

fn ending(kind: IncidentKind) -> Ending {
    Ending {
        at: WallTime(0),
        kind,
        actor: "operator".into(),
        reason: "".into(),
    }
}

fn sight(store: &Store, id: &SessionId) -> Sight {
    let is_live = |session: &Session| session.revoked.is_none();
    match store.sessions.get(id) {
        None => Sight::Missing,
        Some(found) if is_live(&found.value) => Sight::Version(found.version),
        Some(_) => Sight::Revoked,
    }
}

/// Returns the sessions that locks name.
fn named(store: &Store) -> BTreeSet<SessionId> {
    let locks = store.locks.values();
    let named = locks.flat_map(|lock| {
        let holder = lock.value.holder_session().cloned();
        let waiters = lock.value.waiters.entries().iter();
        let waiters = waiters.map(|waiter| waiter.claimant.session.clone());
        holder.into_iter().chain(waiters)
    });
    named.collect()
}
