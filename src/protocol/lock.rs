//! A lock and its transitions.
//!
//! Each transition takes the lock as it was read and returns the lock to write, by compare-and-swap
//! on the revision that was read. It does not know whether the write will succeed: it may be
//! computed any number of times, and takes effect at most once. Only joining the queue needs no
//! compare-and-swap: the store adds the waiter to the lock's current version.

use std::collections::BTreeMap;

use super::completed::{Completed, Completion};
use super::election::is_election;
use super::ids::{GrantId, Resource, SessionId};
use super::incident::{Ending, INCIDENTS_MAX, Incident, IncidentKind};
use super::key::GrantKey;
use super::queue::{Join, Queue, Waiter};
use super::session::Claimant;
use super::settings::{ReleaseRequest, Settings};
use super::time::WallTime;
use super::token::{Mint, Revision, Token, TokenExhausted};

/// A lock held by a session, as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The id of the grant; a release needs it.
    pub id: GrantId,
    /// The holder.
    pub holder: Claimant,
    /// The app's description of itself. Informational.
    pub metadata: BTreeMap<String, String>,
    /// When the lock was acquired. Informational.
    pub acquired_at: WallTime,
    /// Whether the agent keeps the grant between leases. It hands the lock over once a waiter is
    /// queued.
    pub kept: bool,
}

/// A session's request for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Chosen before the first write, so that an unanswered one can be recognized.
    pub grant: GrantId,
    /// The pod and session that request the lock.
    pub claimant: Claimant,
    /// The app's description of itself.
    pub metadata: BTreeMap<String, String>,
    /// Whether the agent will keep the grant between leases.
    pub kept: bool,
    /// The time of the request. Informational.
    pub at: WallTime,
    /// Whether its queue entry goes before those that are not preferred. Ignored for locks that are
    /// not elections.
    pub preferred: bool,
}

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    /// The resource that the lock guards. Immutable.
    pub resource: Resource,
    /// The current grant; `None` if the lock is free.
    pub grant: Option<Grant>,
    /// The first token of the current or last grant. Never decreases.
    pub token: Token,
    /// The queue. Empty if the lock is free.
    pub waiters: Queue,
    /// The latest grants that did not end by a release of their holder, oldest first.
    pub incidents: Vec<Incident>,
    /// The work that has succeeded under this lock.
    pub completed: Completed,
    /// The number of grants so far.
    pub transitions: u64,
    /// Since when its grant counts as long-held, if the operator marked it. It ends with the grant.
    pub long_held: Option<WallTime>,
    /// What users set in its spec. Read only.
    pub settings: Settings,
}

/// Why a claim is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The lock is held.
    Held,
    /// The queue has no room.
    QueueFull,
    /// The lock's object is being deleted and is not granted any more. A recreated one can be.
    BeingDeleted,
    /// No larger token exists.
    TokenExhausted(TokenExhausted),
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The lock to write; once written, the claimant holds it.
    Granted(Box<Lock>),
    /// The claimant holds the lock already: by an earlier write whose answer was lost, or by a
    /// hand-over.
    AlreadyGranted,
    /// The entry to add to the queue; once added, the claimant waits.
    Queued(Box<Waiter>),
    /// The session has this entry in the queue already.
    AlreadyQueued(GrantKey),
    /// Nothing is written.
    Refused(Refusal),
}

/// Whether a token may still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCheck {
    /// It belongs to the current grant.
    Current,
    /// It belongs to a grant that ended.
    Stale,
    /// As far as the store knows, no grant of this lock ever had it.
    Unknown,
}

impl Lock {
    /// Returns a lock that was never held.
    #[must_use]
    pub fn unheld(resource: Resource) -> Self {
        Self {
            resource,
            grant: None,
            token: Token::NONE,
            waiters: Queue::default(),
            incidents: Vec::new(),
            completed: Completed::default(),
            transitions: 0,
            long_held: None,
            settings: Settings::default(),
        }
    }

    /// Returns whether this grant holds the lock, for the same session of the same pod.
    #[must_use]
    pub fn is_held_by(&self, grant: &GrantKey) -> bool {
        self.held_as(grant).is_some()
    }

    /// Returns whether the lock names a grant of this id, under any session and pod.
    #[must_use]
    pub fn names_grant(&self, grant: &GrantId) -> bool {
        self.grant.as_ref().is_some_and(|held| held.id == *grant)
    }

    /// Returns the session that holds the lock.
    #[must_use]
    pub fn holder_session(&self) -> Option<&SessionId> {
        self.grant.as_ref().map(|grant| &grant.holder.session)
    }

    /// Tries once to acquire the lock, which was read at `at`.
    #[must_use]
    pub fn acquire(&self, at: Revision, mint: &Mint, claim: &Claim) -> Decision {
        if self.is_held_by(&claim.key()) {
            return Decision::AlreadyGranted;
        }
        if self.grant.is_some() {
            return Decision::Refused(Refusal::Held);
        }
        if self.settings.is_being_deleted {
            return Decision::Refused(Refusal::BeingDeleted);
        }
        match self.granted_to(claim.to_grant(), self.waiters.clone(), at, mint) {
            Ok(next) => Decision::Granted(Box::new(next)),
            Err(exhausted) => Decision::Refused(Refusal::TokenExhausted(exhausted)),
        }
    }

    /// Acquires the lock if it is free, and joins its queue otherwise.
    #[must_use]
    pub fn acquire_or_queue(&self, at: Revision, mint: &Mint, claim: &Claim) -> Decision {
        let decision = self.acquire(at, mint, claim);
        if decision != Decision::Refused(Refusal::Held) {
            return decision;
        }
        let mut waiter = claim.to_waiter();
        waiter.preferred &= is_election(&self.resource);
        match self.waiters.join(waiter.clone()) {
            Join::Joined(_) => Decision::Queued(Box::new(waiter)),
            Join::Present(grant) => Decision::AlreadyQueued(grant),
            Join::Full => Decision::Refused(Refusal::QueueFull),
        }
    }

    /// Returns the lock with one more waiter in its queue; `None` if the waiter may not join.
    ///
    /// A join at the end of the queue is the only write without a revision: the last position does
    /// not depend on the entries before it. The store applies it to the lock's current version,
    /// possibly late. So this function checks everything that makes a late join harmless: the lock
    /// is held, by another grant than the waiter's; the queue has room; the session has no other
    /// entry. The position of a preferred candidate does depend on the other entries, so its join
    /// is a compare-and-swap.
    #[must_use]
    pub fn joined_by(&self, waiter: Waiter) -> Option<Self> {
        let _held = self.grant.as_ref().filter(|held| held.id != waiter.grant)?;
        if waiter.preferred && !is_election(&self.resource) {
            return None;
        }
        match self.waiters.join(waiter) {
            Join::Joined(waiters) => Some(Self {
                waiters,
                ..self.clone()
            }),
            Join::Present(_) | Join::Full => None,
        }
    }

    /// Returns the lock without this waiter; `None` if it is not queued.
    #[must_use]
    pub fn leave_queue(&self, grant: &GrantKey) -> Option<Self> {
        self.waiters.without(grant).map(|waiters| Self {
            waiters,
            ..self.clone()
        })
    }

    /// Returns the lock with the grant in the name of another caller of the same session: the first
    /// caller has left, and the next one in that pod gets its grant. `None` if this grant does not
    /// hold the lock, or has the name already.
    #[must_use]
    pub fn in_the_name_of(&self, claim: &Claim) -> Option<Self> {
        let held = self.held_as(&claim.key())?;
        if held.holder.owner == claim.claimant.owner {
            return None;
        }
        Some(Self {
            grant: Some(Grant {
                acquired_at: held.acquired_at,
                // Waiters of other pods have made decisions based on it.
                kept: held.kept,
                ..claim.to_grant()
            }),
            ..self.clone()
        })
    }

    /// Returns the lock after the release of this grant: held by the head of the queue, expired or
    /// not, or free. `None` if this grant does not hold the lock.
    ///
    /// A release does not check whether the head has expired. An observer that proves it takes
    /// over.
    #[must_use]
    pub fn release(
        &self,
        at: Revision,
        mint: &Mint,
        grant: &GrantKey,
        now: WallTime,
    ) -> Option<Self> {
        self.is_held_by(grant)
            .then(|| self.handed_on(&self.waiters, at, mint, now))
    }

    /// Like [`Lock::release`], for an app that releases at a person's request: the same write
    /// records the incident.
    #[must_use]
    pub fn release_on_request(
        &self,
        at: Revision,
        mint: &Mint,
        grant: &GrantKey,
        request: &ReleaseRequest,
        now: WallTime,
    ) -> Option<Self> {
        let held = self.held_as(grant)?;
        let ending = Ending {
            at: now,
            kind: IncidentKind::ReleasedOnRequest,
            actor: request.actor.clone(),
            reason: request.reason.clone(),
        };
        let recorded = self.with_incident(ending.incident(held, self.token));
        Some(recorded.handed_on(&self.waiters, at, mint, now))
    }

    /// Returns the lock after its holder was proven expired. It is granted to the first waiter that
    /// has not expired, otherwise to the taker; without either it is free. The same write drops
    /// expired waiters and records the incident. `None` if the holder has not expired.
    ///
    /// The caller must have observed that the holder's session is revoked, or missing for long
    /// enough, before this is *written*. It does not matter when the lock was read, because the
    /// compare-and-swap is on that version. If the revocation came after the write, a hung holder
    /// could renew in between and continue to act.
    #[must_use]
    pub fn take_over(
        &self,
        at: Revision,
        mint: &Mint,
        is_dead: impl Fn(&Claimant) -> bool,
        ending: &Ending,
        taker: Option<&Claim>,
    ) -> Option<Self> {
        let grant = self.grant.as_ref()?;
        if !is_dead(&grant.holder) {
            return None;
        }
        let living = self.waiters.without_dead(is_dead);
        let recorded = self.with_incident(ending.incident(grant, self.token));
        match taker {
            Some(taker) if living.is_empty() => {
                Some(recorded.granted_or_free(taker.to_grant(), Queue::default(), at, mint))
            }
            _ => Some(recorded.handed_on(&living, at, mint, ending.at)),
        }
    }

    /// Returns the lock after a person ended this grant by force: granted to the first waiter that
    /// has not expired, otherwise free. The same write records the incident. `None` if that grant
    /// does not hold the lock.
    ///
    /// The holder may act until it observes this. Until then only the token protects the resource.
    #[must_use]
    pub fn force_release(
        &self,
        at: Revision,
        mint: &Mint,
        grant: &GrantId,
        is_dead: impl Fn(&Claimant) -> bool,
        ending: &Ending,
    ) -> Option<Self> {
        let held = self.grant.as_ref().filter(|held| held.id == *grant)?;
        let living = self.waiters.without_dead(is_dead);
        let recorded = self.with_incident(ending.incident(held, self.token));
        Some(recorded.handed_on(&living, at, mint, ending.at))
    }

    /// Returns the lock with a record that work of this grant has succeeded. `None` if this grant does
    /// not hold the lock: work that may not have been guarded does not count.
    #[must_use]
    pub fn complete(&self, grant: &GrantKey, completion: Completion) -> Option<Self> {
        self.is_held_by(grant).then(|| Self {
            completed: self.completed.with(completion),
            ..self.clone()
        })
    }

    /// Returns the lock with the long-held mark set or removed; `None` if that changes nothing, or
    /// if a free lock would be marked.
    #[must_use]
    pub fn marked_long_held(&self, since: Option<WallTime>) -> Option<Self> {
        let changes = since.is_some() != self.long_held.is_some();
        let makes_sense = since.is_none() || self.grant.is_some();
        (changes && makes_sense).then(|| Self {
            long_held: since,
            ..self.clone()
        })
    }

    /// Returns the record of this grant's end, if it exists. Records of a version that names no
    /// grants are matched by the grant's first token.
    #[must_use]
    pub fn incident_of(&self, grant: &GrantId, base: Token) -> Option<&Incident> {
        self.incidents.iter().find(|one| match &one.grant {
            Some(named) => named == grant,
            None => one.token == base,
        })
    }

    /// Returns the lock with a new, larger base for the same grant: after a suspected restore, or
    /// if the grant's tokens are used up. `None` if this grant does not hold the lock.
    ///
    /// # Errors
    /// [`TokenExhausted`] if no larger base exists.
    pub fn rebase(
        &self,
        at: Revision,
        mint: &Mint,
        grant: &GrantKey,
    ) -> Result<Option<Self>, TokenExhausted> {
        if !self.is_held_by(grant) {
            return Ok(None);
        }
        let token = mint.base(at, self.token)?;
        Ok(Some(Self {
            token,
            ..self.clone()
        }))
    }

    /// Returns what the store knows about a token. For every client except the holder's agent, all
    /// thousand tokens from the base on belong to the current grant.
    #[must_use]
    pub fn check_token(&self, token: Token) -> TokenCheck {
        if self.token.covers(token) && self.token != Token::NONE {
            match self.grant {
                Some(_) => TokenCheck::Current,
                None => TokenCheck::Stale,
            }
        } else if token < self.token {
            TokenCheck::Stale
        } else {
            TokenCheck::Unknown
        }
    }

    fn held_as(&self, grant: &GrantKey) -> Option<&Grant> {
        self.grant.as_ref().filter(|held| held.key() == *grant)
    }

    fn granted_to(
        &self,
        grant: Grant,
        waiters: Queue,
        at: Revision,
        mint: &Mint,
    ) -> Result<Self, TokenExhausted> {
        Ok(Self {
            grant: Some(grant),
            token: mint.base(at, self.token)?,
            waiters,
            transitions: self.transitions.saturating_add(1),
            long_held: None,
            ..self.clone()
        })
    }

    /// Returns the lock granted to the head of the queue, or free without waiters.
    fn handed_on(&self, waiters: &Queue, at: Revision, mint: &Mint, now: WallTime) -> Self {
        match waiters.split_head() {
            Some((head, rest)) => self.granted_or_free(head.into_grant(now), rest, at, mint),
            None => self.freed(),
        }
    }

    /// If no larger token exists, or the object is being deleted, the lock is freed and its queue
    /// emptied (a free lock has no waiters). Each waiter queues again, or is refused with the
    /// reason.
    fn granted_or_free(&self, grant: Grant, waiters: Queue, at: Revision, mint: &Mint) -> Self {
        if self.settings.is_being_deleted {
            return self.freed();
        }
        self.granted_to(grant, waiters, at, mint)
            .unwrap_or_else(|_| self.freed())
    }

    fn freed(&self) -> Self {
        Self {
            grant: None,
            waiters: Queue::default(),
            long_held: None,
            ..self.clone()
        }
    }

    fn with_incident(&self, incident: Incident) -> Self {
        let skip = (self.incidents.len() + 1).saturating_sub(INCIDENTS_MAX);
        let incidents = self
            .incidents
            .iter()
            .skip(skip)
            .cloned()
            .chain([incident])
            .collect();
        Self {
            incidents,
            ..self.clone()
        }
    }
}

impl Claim {
    fn to_grant(&self) -> Grant {
        Grant {
            id: self.grant.clone(),
            holder: self.claimant.clone(),
            metadata: self.metadata.clone(),
            acquired_at: self.at,
            kept: self.kept,
        }
    }

    /// Returns the queue entry of this claim.
    #[must_use]
    pub fn to_waiter(&self) -> Waiter {
        Waiter {
            grant: self.grant.clone(),
            claimant: self.claimant.clone(),
            queued_at: self.at,
            preferred: self.preferred,
        }
    }
}

impl Waiter {
    fn into_grant(self, now: WallTime) -> Grant {
        Grant {
            id: self.grant,
            holder: self.claimant,
            metadata: BTreeMap::new(),
            acquired_at: now,
            kept: false,
        }
    }
}

#[cfg(test)]
mod tests;
