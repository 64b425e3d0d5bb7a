//! The callers that want locks, and the claim that is made for all callers of one lock.
//!
//! Callers of one lock are served one after the other, by one claim and one entry in the lock's queue. The entry turns into the
//! grant of the same id. No decisions.

use std::collections::{BTreeMap, BTreeSet};

use crate::agent::api::Acquired;
use crate::protocol::ids::{GrantId, Resource};
use crate::protocol::key::SessionKey;
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::callers::{Caller, CallerId, Callers};
use super::claim::Claim;
use super::effect::CallId;

/// How many unknown own grants are remembered; a forgotten one is found again.
const SUSPECTS_MAX: usize = 1_000;

/// How much is acquired at once, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) struct AcquireConfig {
    /// Whether it takes over expired sessions' locks, where the admission policies allow that.
    pub(in crate::agent) takes_over: bool,
    /// How many leases are served at once.
    pub(in crate::agent) max_leases: usize,
    /// How many callers wait at once.
    pub(in crate::agent) max_waiting: usize,
}

/// The callers that want locks, and the claims that are made for them.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Acquiring {
    pub(super) config: AcquireConfig,
    pub(super) callers: BTreeMap<Resource, Callers>,
    claims: BTreeMap<Resource, Claim>,
    /// When each claim has something to do.
    due: BTreeSet<(Moment, Resource)>,
    due_at: BTreeMap<Resource, Moment>,
    /// How many callers each lock has, and how many of them wait.
    counted: BTreeMap<Resource, (usize, usize)>,
    /// The sums of these.
    load: usize,
    waiting: usize,
    /// The lock that each call is for.
    pub(super) calls: BTreeMap<CallId, Resource>,
    /// Own grants that a read showed and that no lease or claim is known of.
    suspects: BTreeSet<GrantId>,
}

impl Acquiring {
    pub(super) fn new(config: AcquireConfig) -> Self {
        Self {
            config,
            callers: BTreeMap::new(),
            claims: BTreeMap::new(),
            due: BTreeSet::new(),
            due_at: BTreeMap::new(),
            counted: BTreeMap::new(),
            load: 0,
            waiting: 0,
            calls: BTreeMap::new(),
            suspects: BTreeSet::new(),
        }
    }

    /// Returns how many callers there are; claims without a caller count as well.
    pub(in crate::agent) const fn len(&self) -> usize {
        self.load
    }

    /// Returns how many callers wait.
    pub(in crate::agent) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Counts the callers of a lock again, after they or its claim changed.
    pub(super) fn recount(&mut self, resource: &Resource) {
        let callers = self.callers.get(resource);
        let alone = usize::from(self.claims.contains_key(resource));
        let load = callers.map_or(0, Callers::len).max(alone);
        let waiting = callers.map_or(0, Callers::waiting);
        let before = if load > 0 {
            self.counted.insert(resource.clone(), (load, waiting))
        } else {
            self.counted.remove(resource)
        };
        let (load_before, waiting_before) = before.unwrap_or_default();
        self.load = self.load + load - load_before;
        self.waiting = self.waiting + waiting - waiting_before;
    }

    /// Returns whether a caller of this agent waits for a lock.
    pub(in crate::agent) fn is_awaited(&self, resource: &Resource, now: Moment) -> bool {
        let callers = self.callers.get(resource);
        callers.is_some_and(|callers| callers.is_awaited(now))
    }

    /// Returns whether a caller of a lock is still there.
    pub(super) fn has(&self, resource: &Resource, caller: CallerId) -> bool {
        let callers = self.callers.get(resource);
        callers.is_some_and(|callers| callers.get(caller).is_some())
    }

    /// Returns the caller of a lock whose turn is next.
    pub(super) fn first(&mut self, resource: &Resource, now: Moment) -> Option<Caller> {
        self.callers.get_mut(resource)?.first(now).cloned()
    }

    /// Returns what is known of a lock that callers wait for: who holds it.
    pub(in crate::agent) fn held(&self, resource: &Resource) -> Option<&Acquired> {
        self.callers.get(resource)?.held()
    }

    /// Records an own grant that nothing here is known of. Returns whether it was recorded before.
    pub(super) fn suspected_before(&mut self, grant: &GrantId) -> bool {
        if self.suspects.len() >= SUSPECTS_MAX {
            self.suspects.clear();
        }
        !self.suspects.insert(grant.clone())
    }

    /// Records the lock with a claim's grant, as the watch reported it. Returns whether it is one.
    pub(super) fn observe(&mut self, grant: &GrantId, stored: &Stored<Lock>) -> bool {
        let claim = self.claims.get_mut(&stored.value.resource);
        let Some(claim) = claim.filter(|claim| claim.grant == *grant) else {
            return false;
        };
        claim.reported = Some(Box::new(stored.clone()));
        true
    }

    /// Records that the session did not hold a lock at a revision.
    pub(super) fn observe_gone(&mut self, resource: &Resource, at: Revision) {
        if let Some(claim) = self.claims.get_mut(resource) {
            claim.gone_at = claim.gone_at.max(Some(at));
        }
    }

    /// Records that the session held only these locks at a revision.
    pub(super) fn observe_only(&mut self, held: &BTreeSet<Resource>, at: Revision) {
        for (resource, claim) in &mut self.claims {
            if !held.contains(resource) {
                claim.gone_at = claim.gone_at.max(Some(at));
            }
        }
    }

    /// Returns when a claim has something to do.
    pub(super) fn timeout(&self) -> Option<Moment> {
        self.due.first().map(|(moment, _)| *moment)
    }

    /// Returns a lock whose claim has something to do.
    pub(super) fn next_due(&self, now: Moment) -> Option<Resource> {
        let (moment, resource) = self.due.first()?;
        (now >= *moment).then(|| resource.clone())
    }

    pub(super) fn resources(&self) -> Vec<Resource> {
        self.claims.keys().cloned().collect()
    }

    /// Takes the claim for a lock, to work on it.
    pub(super) fn take(&mut self, resource: &Resource) -> Option<Claim> {
        if let Some(at) = self.due_at.remove(resource) {
            self.due.remove(&(at, resource.clone()));
        }
        self.claims.remove(resource)
    }

    /// Puts a claim back, which has something to do at a moment.
    pub(super) fn put(&mut self, claim: Claim, due: Option<Moment>) {
        let resource = claim.resource.clone();
        if let Some(due) = due {
            self.due.insert((due, resource.clone()));
            self.due_at.insert(resource.clone(), due);
        }
        self.claims.insert(resource, claim);
    }

    /// Returns how many wait for a lock, as far as is known here: the others in its queue, and the
    /// callers of this agent, who may have one entry for all of them, none yet, or one that is about to
    /// go.
    pub(in crate::agent) fn waiting_for(&self, lock: &Lock, own: Option<&SessionKey>) -> usize {
        let entries = lock.waiters.entries().iter();
        let others = entries.filter(|waiter| Some(&waiter.claimant.key()) != own);
        let others = others.count();
        let callers = self.callers.get(&lock.resource);
        let callers = callers.map_or(0, Callers::waiting);
        others + callers.max(lock.waiters.len() - others)
    }
}
