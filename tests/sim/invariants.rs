//! The invariants, checked after every step on real events: each write that the store applied, each
//! belief of an app, each write that the fenced resource accepted. The model, too, has those about
//! beliefs and tokens.
//!
//! No agent's internal state is read: only its answers to apps count.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold::protocol::ids::{GrantId, LeaseId, Resource, SessionId};
use leasehold::protocol::incident::INCIDENTS_MAX;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::queue::QUEUE_MAX;
use leasehold::protocol::session::Claimant;
use leasehold::protocol::token::{Revision, Token};

use crate::recorder::Invocation;

/// Either valid, or a violation with its message.
pub(crate) type Verdict = Result<(), String>;

/// The validity of a lease that an app received.
#[derive(Clone, Debug)]
pub(crate) struct Promise {
    pub(crate) app: String,
    pub(crate) resource: Resource,
    pub(crate) lease: LeaseId,
    pub(crate) token: Token,
    /// The time of the request.
    pub(crate) asked: Duration,
    /// The answered request, in the history.
    pub(crate) request: Invocation,
    /// The time of the answer's arrival.
    pub(crate) at: Duration,
    /// The end of its validity by the app's clock, in virtual time.
    pub(crate) until: Duration,
    /// How much faster than virtual time that clock runs, in millionths.
    pub(crate) gain: u64,
    /// Whether this is the first answer about the lease.
    pub(crate) is_new: bool,
}

/// The events of all locks so far.
pub(crate) struct Invariants {
    locks: BTreeMap<Resource, History>,
    /// Whether all clocks are within bounds. If one is not, only tokens and fencing are claimed.
    pub(crate) claims_exclusion: bool,
}

/// The events of one resource's locks, including deleted and recreated ones.
#[derive(Default)]
struct History {
    /// The stored lock.
    last: Option<Lock>,
    /// The largest token that was stored, or that a backup contained.
    stored: Token,
    /// Every stored grant, with its holder.
    granted: BTreeMap<GrantId, Claimant>,
    /// Grants that a person ended, or that existed when a backup was restored: others may hold the
    /// lock while their apps believe.
    overridden: BTreeSet<GrantId>,
    beliefs: BTreeMap<LeaseId, Belief>,
    /// The lease of each token.
    leases: BTreeMap<Token, LeaseId>,
    /// The largest token returned by each time; both only increase.
    promise: Vec<(Duration, Token)>,
    /// Leases that are over: the app was notified, or ended them.
    over: BTreeSet<LeaseId>,
    /// The largest token of a write that the fenced resource accepted.
    written: Token,
    /// All grants, in the order of their first write to the store.
    issued: Vec<GrantId>,
    /// The number of grants at the last restore of a backup, and the lower bound of later tokens.
    restored_at: usize,
    restored_to: u64,
    /// The position of the grant of the newest accepted write.
    newest_written: usize,
}

struct Belief {
    app: String,
    token: Token,
    until: Duration,
}

impl Invariants {
    pub(crate) const fn new(claims_exclusion: bool) -> Self {
        Self {
            locks: BTreeMap::new(),
            claims_exclusion,
        }
    }

    fn of(&mut self, resource: &Resource) -> &mut History {
        self.locks.entry(resource.clone()).or_default()
    }

    /// Records the current lock, `None` if it was deleted. Returns the previous one.
    pub(crate) fn stored(
        &mut self,
        resource: &Resource,
        lock: Option<&Lock>,
    ) -> Result<Option<Lock>, String> {
        let history = self.of(resource);
        let before = std::mem::replace(&mut history.last, lock.cloned());
        if let Some(lock) = lock {
            is_sound(lock)?;
            history.note_grant(before.as_ref(), lock)?;
        }
        Ok(before)
    }

    /// An administrator overrode the current grant: exclusion is not claimed for its app any
    /// longer.
    pub(crate) fn overridden(&mut self, resource: &Resource) {
        let history = self.of(resource);
        let held = history.last.as_ref().and_then(|lock| lock.grant.as_ref());
        history
            .overridden
            .extend(held.map(|grant| grant.id.clone()));
    }

    /// An administrator wiped a lock: it begins again, like a deleted one.
    pub(crate) fn wiped(&mut self, resource: &Resource) {
        self.of(resource).last = None;
    }

    /// A backup with these locks replaced everything.
    pub(crate) fn restored(&mut self, backup: &BTreeMap<Resource, Lock>, revision: Revision) {
        for resource in backup.keys() {
            self.of(resource);
        }
        for (resource, history) in &mut self.locks {
            history.override_all();
            history.last = backup.get(resource).cloned();
            history.override_all();
            let token = history.last.as_ref().map(|lock| lock.token);
            history.stored = token.unwrap_or_default();
            history.restored_at = history.issued.len();
            history.restored_to = u64::try_from(revision.scale()).unwrap_or(u64::MAX);
        }
    }

    /// Returns the session of a promise's grant.
    pub(crate) fn session_of(&mut self, promise: &Promise) -> Result<SessionId, String> {
        let grant = promise.lease.grant();
        let granted = &self.of(&promise.resource).granted;
        let session = grant.and_then(|grant| granted.get(&grant));
        let nobody = || {
            format!(
                "{} was told of {}, never stored",
                promise.app, promise.lease
            )
        };
        let session = session.map(|claimant| claimant.session.clone());
        session.ok_or_else(nobody)
    }

    /// Returns whether a person or a restore ended this grant.
    pub(crate) fn is_overridden(&self, resource: &Resource, grant: &GrantId) -> bool {
        let history = self.locks.get(resource);
        history.is_some_and(|history| history.overridden.contains(grant))
    }

    /// An app receives a confirmation of a new or an existing lease.
    pub(crate) fn promise(&mut self, promise: &Promise) -> Verdict {
        let claims_exclusion = self.claims_exclusion;
        let history = self.of(&promise.resource);
        history.check_token(promise)?;
        if history.over.contains(&promise.lease) {
            return Err(format!(
                "{} receives that {} goes on after it was over",
                promise.app, promise.lease
            ));
        }
        if promise.until <= promise.at {
            return Ok(());
        }
        if claims_exclusion && !history.is_overridden(&promise.lease) {
            history.check_alone(promise)?;
            history.check_newest(promise)?;
        }
        // An earlier promise stays valid, even if a slower answer has an earlier deadline.
        let told = history.beliefs.get(&promise.lease).map(|told| told.until);
        let belief = Belief {
            app: promise.app.clone(),
            token: promise.token,
            until: told.map_or(promise.until, |told| told.max(promise.until)),
        };
        history.beliefs.insert(promise.lease.clone(), belief);
        Ok(())
    }

    /// An app stopped believing in its lease.
    pub(crate) fn stopped_believing(&mut self, resource: &Resource, lease: &LeaseId) {
        self.of(resource).beliefs.remove(lease);
    }

    /// The apps of a pod crashed and no longer act. Returns the leases that they held.
    pub(crate) fn crashed(&mut self, pod: &str) -> Vec<(String, LeaseId)> {
        let mut stopped = Vec::new();
        for history in self.locks.values_mut() {
            history.beliefs.retain(|lease, belief| {
                let lives = pod_of(&belief.app) != pod;
                if !lives {
                    stopped.push((belief.app.clone(), lease.clone()));
                }
                lives
            });
        }
        stopped
    }

    /// An app was notified that its lease is over.
    pub(crate) fn over(&mut self, resource: &Resource, lease: &LeaseId) {
        let history = self.of(resource);
        history.beliefs.remove(lease);
        history.over.insert(lease.clone());
    }

    /// A write arrives at the fenced resource, which accepts it or not.
    pub(crate) fn written(
        &mut self,
        resource: &Resource,
        lease: &LeaseId,
        token: Token,
        is_taken: bool,
        now: Duration,
    ) -> Verdict {
        let claims_exclusion = self.claims_exclusion;
        let history = self.of(resource);
        if is_taken && token < history.written {
            return Err(format!(
                "{resource} took a write with token {token} after one with {}",
                history.written
            ));
        }
        if is_taken {
            history.written = token;
            return history.note_taken(resource, lease);
        }
        let believes = history.beliefs.get(lease).filter(|b| now < b.until);
        match believes {
            Some(belief) if claims_exclusion && !history.is_overridden(lease) => Err(format!(
                "{resource} refused {} of {}, which is inside its deadline",
                token, belief.app
            )),
            _ => Ok(()),
        }
    }

    /// Returns the stored lock.
    pub(crate) fn lock(&self, resource: &Resource) -> Option<&Lock> {
        self.locks.get(resource)?.last.as_ref()
    }

    /// Returns the end of the longest belief of this pod's apps, if any.
    pub(crate) fn believes_until(&self, pod: &str) -> Option<Duration> {
        let all = self
            .locks
            .values()
            .flat_map(|history| history.beliefs.values());
        let its = all.filter(|belief| pod_of(&belief.app) == pod);
        its.map(|belief| belief.until).max()
    }

    /// Returns the stored locks.
    pub(crate) fn locks(&self) -> impl Iterator<Item = &Lock> {
        self.locks
            .values()
            .filter_map(|history| history.last.as_ref())
    }
}

impl History {
    fn override_all(&mut self) {
        let Some(lock) = &self.last else { return };
        let waiting = lock.waiters.entries().iter().map(|waiter| &waiter.grant);
        let all = lock.grant.iter().map(|grant| &grant.id).chain(waiting);
        self.overridden.extend(all.cloned());
    }

    fn is_overridden(&self, lease: &LeaseId) -> bool {
        let grant = lease.grant();
        grant.is_some_and(|grant| self.overridden.contains(&grant))
    }

    /// A new grant has a token above all stored ones.
    fn note_grant(&mut self, before: Option<&Lock>, lock: &Lock) -> Verdict {
        let is_new = lock
            .grant
            .as_ref()
            .is_some_and(|grant| !before.is_some_and(|before| before.names_grant(&grant.id)));
        if let Some(grant) = &lock.grant {
            let claimant = grant.holder.clone();
            let known = self.granted.insert(grant.id.clone(), claimant);
            if known.is_none() {
                self.issued.push(grant.id.clone());
            }
        }
        // A deleted lock begins without a token.
        let is_unheld = lock.token == Token::NONE && before.is_none();
        if is_unheld {
            return Ok(());
        }
        if lock.token < self.stored || (is_new && lock.token == self.stored) {
            return Err(format!(
                "{} was stored with token {} after {}",
                lock.resource, lock.token, self.stored
            ));
        }
        self.stored = lock.token;
        Ok(())
    }

    /// The fenced resource accepted a write of this lease. Its grant must not be older than that of
    /// another accepted write, whatever the tokens are.
    fn note_taken(&mut self, of: &Resource, lease: &LeaseId) -> Verdict {
        let grant = lease.grant();
        let place = self.issued.iter().position(|id| grant.as_ref() == Some(id));
        match place {
            Some(place) if place >= self.newest_written => {
                self.newest_written = place;
                Ok(())
            }
            _ => Err(format!(
                "{of} took a write of {lease} after a newer grant's"
            )),
        }
    }

    /// A token belongs to one lease, and is larger than all that were returned before the request
    /// for it.
    fn check_token(&mut self, promise: &Promise) -> Verdict {
        let owner = self
            .leases
            .entry(promise.token)
            .or_insert_with(|| promise.lease.clone());
        if *owner != promise.lease {
            return Err(format!(
                "token {} of {} is {}'s and {owner}'s",
                promise.token, promise.resource, promise.lease
            ));
        }
        if !promise.is_new {
            return Ok(());
        }
        self.check_restored(promise)?;
        // Without a read an agent cannot know that a person ended the grant of its next lease. That
        // lease is stale from the beginning, and the fence refuses its writes.
        let is_excused = self.is_overridden(&promise.lease);
        let largest = self.told_before(promise.asked);
        if let Some(largest) = largest.filter(|largest| !is_excused && *largest >= promise.token) {
            return Err(format!(
                "{} asked for {} after token {largest} was told, and has {}",
                promise.app, promise.resource, promise.token
            ));
        }
        let last = self.promise.last().map_or(Token::NONE, |(_, token)| *token);
        self.promise.push((promise.at, last.max(promise.token)));
        Ok(())
    }

    /// The revision that the store was raised to counts, and not the backup's.
    fn check_restored(&self, promise: &Promise) -> Verdict {
        let grant = promise.lease.grant();
        let later = self.issued.get(self.restored_at..).unwrap_or_default();
        let is_later = later.iter().any(|id| Some(id) == grant.as_ref());
        if is_later && promise.token.get() < self.restored_to {
            return Err(format!(
                "{} was told of {} with token {}, from before the restore",
                promise.app, promise.resource, promise.token
            ));
        }
        Ok(())
    }

    /// Returns the largest token that was returned before this time.
    fn told_before(&self, then: Duration) -> Option<Token> {
        let known = self.promise.partition_point(|(at, _)| *at <= then);
        known.checked_sub(1).map(|last| self.promise[last].1)
    }

    /// A request after a newer lease was returned gets no confirmation, whether or not the newer
    /// lease is over.
    fn check_newest(&self, promise: &Promise) -> Verdict {
        match self.told_before(promise.asked) {
            Some(newest) if newest > promise.token => Err(format!(
                "{} goes on with token {} of {}, after token {newest} was told",
                promise.app, promise.token, promise.resource
            )),
            _ => Ok(()),
        }
    }

    /// No other app believes, and no newer lease was returned.
    fn check_alone(&self, promise: &Promise) -> Verdict {
        for (lease, other) in &self.beliefs {
            if *lease == promise.lease || self.is_overridden(lease) {
                continue;
            }
            if promise.at < other.until || promise.token < other.token {
                return Err(format!(
                    "{} believes in {} with token {} until {:?}, and {} with token {} until {:?}",
                    promise.app,
                    promise.resource,
                    promise.token,
                    promise.until,
                    other.app,
                    other.token,
                    other.until
                ));
            }
        }
        Ok(())
    }
}

/// Apps are named after their pods.
fn pod_of(app: &str) -> &str {
    app.split('/').next().unwrap_or(app)
}

fn is_sound(lock: &Lock) -> Verdict {
    let waiters = lock.waiters.entries();
    let sessions: BTreeSet<_> = waiters.iter().map(|w| &w.claimant.session).collect();
    let what = if lock.grant.is_none() && !waiters.is_empty() {
        "is free and has waiters"
    } else if sessions.len() != waiters.len() {
        "has a session twice in its queue"
    } else if waiters.len() > QUEUE_MAX {
        "has too many waiters"
    } else if waiters.iter().any(|w| lock.names_grant(&w.grant)) {
        "is held by one who waits"
    } else if lock.incidents.len() > INCIDENTS_MAX {
        "has too many incidents"
    } else {
        return Ok(());
    };
    Err(format!("{} {what}", lock.resource))
}
