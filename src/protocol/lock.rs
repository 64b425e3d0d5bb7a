//! A lock and everything that can happen to it.
//!
//! Each transition takes the lock as it was read and gives the lock to write by compare-and-swap
//! on the revision it was read at. None of them knows whether the write will succeed: a
//! transition may be computed any number of times, and takes effect at most once. Joining the
//! queue alone needs no swap; the store does that to the lock as it finds it.

use std::collections::BTreeMap;

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
    /// Names the grant; only who knows it can release.
    pub id: GrantId,
    /// Who holds the lock.
    pub holder: Claimant,
    /// What the app wrote about itself, for people.
    pub metadata: BTreeMap<String, String>,
    /// Since when, for people.
    pub acquired_at: WallTime,
    /// Whether the agent keeps the grant between leases: "queue, and it will be given".
    pub kept: bool,
}

/// What a session wants a lock for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Made before the first write, so that an unanswered one can be recognised.
    pub grant: GrantId,
    /// Who claims.
    pub claimant: Claimant,
    /// What the app wrote about itself.
    pub metadata: BTreeMap<String, String>,
    /// Whether the agent shall keep the grant between leases.
    pub kept: bool,
    /// Now, for people.
    pub at: WallTime,
    /// Whether it is to stand before those in the queue that are not preferred. Elections only;
    /// elsewhere it means nothing.
    pub preferred: bool,
}

/// One lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    /// What it guards. Never changes.
    pub resource: Resource,
    /// Who has it; none when it is free.
    pub grant: Option<Grant>,
    /// The first token of the current or last grant. Never smaller than before.
    pub token: Token,
    /// Who waits. Empty when the lock is free.
    pub waiters: Queue,
    /// The last few ends of grants that their holders did not ask for, oldest first.
    pub incidents: Vec<Incident>,
    /// How often it was granted.
    pub transitions: u64,
    /// Since when its grant counts as long-held, if the operator marked it. It goes with the grant.
    pub long_held: Option<WallTime>,
    /// What people set for it. Read only.
    pub settings: Settings,
}

/// Why a claim is not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody holds the lock.
    Held,
    /// The queue has no room.
    QueueFull,
    /// The lock's object is being deleted. No grant is made on it; its successor can be granted.
    BeingDeleted,
    /// No token can be made.
    TokenExhausted(TokenExhausted),
}

/// What becomes of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Write this; once written, the lock is the claimant's.
    Granted(Box<Lock>),
    /// The lock is the claimant's already: an earlier write whose answer was lost, or a
    /// hand-over.
    AlreadyGranted,
    /// Join the queue with this; once it is in, the claimant waits in line.
    Queued(Box<Waiter>),
    /// The session is in the queue already, by this entry.
    AlreadyQueued(GrantKey),
    /// Nothing is written.
    Refused(Refusal),
}

/// What a token is worth to the one who presents it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCheck {
    /// It belongs to the current grant.
    Current,
    /// It belongs to a grant that ended.
    Stale,
    /// It was never given for this lock, as far as the store says.
    Unknown,
}

impl Lock {
    /// A lock that nobody ever held.
    #[must_use]
    pub fn unheld(resource: Resource) -> Self {
        Self {
            resource,
            grant: None,
            token: Token::NONE,
            waiters: Queue::default(),
            incidents: Vec::new(),
            transitions: 0,
            long_held: None,
            settings: Settings::default(),
        }
    }

    /// Whether this grant holds the lock, for the same session of the same pod.
    #[must_use]
    pub fn is_held_by(&self, grant: &GrantKey) -> bool {
        self.held_as(grant).is_some()
    }

    /// Whether the lock names a grant of this id, under any session and pod.
    #[must_use]
    pub fn names_grant(&self, grant: &GrantId) -> bool {
        self.grant.as_ref().is_some_and(|held| held.id == *grant)
    }

    /// The session that holds the lock.
    #[must_use]
    pub fn holder_session(&self) -> Option<&SessionId> {
        self.grant.as_ref().map(|grant| &grant.holder.session)
    }

    /// One try to take the lock, which was read at `at`.
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

    /// Takes the lock if it is free, else a place in its queue.
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

    /// The lock with one more waiter in its queue; none when it may not have it.
    ///
    /// At the end of the queue this is the one write that is not decided on a revision: who comes last does not depend on
    /// who came before. The store applies it to the lock as it is by then, at once or late, so all
    /// that keeps it harmless is asked here: the lock is held, and by another grant than the one
    /// that would wait, there is room, and the session has no other place. The place of a preferred
    /// candidate does depend on who came before: that is decided on a revision.
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

    /// The lock without this waiter; none when it does not wait.
    #[must_use]
    pub fn leave_queue(&self, grant: &GrantKey) -> Option<Self> {
        self.waiters.without(grant).map(|waiters| Self {
            waiters,
            ..self.clone()
        })
    }

    /// The lock with the grant in the name of another app of the same session: who asked first has
    /// gone, and the next one in that pod takes over what it had. None when this grant does not
    /// hold it, or has the name already.
    #[must_use]
    pub fn in_the_name_of(&self, claim: &Claim) -> Option<Self> {
        let held = self.held_as(&claim.key())?;
        if held.holder.owner == claim.claimant.owner {
            return None;
        }
        Some(Self {
            grant: Some(Grant {
                acquired_at: held.acquired_at,
                // Others have decided by it.
                kept: held.kept,
                ..claim.to_grant()
            }),
            ..self.clone()
        })
    }

    /// The lock after this grant was released: the head's, dead or alive, or free. None when
    /// this grant does not hold it (any more).
    ///
    /// A releaser does not judge who is dead; whoever finds the new holder dead takes over.
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

    /// The same for an app that was asked by a person and let go: with the incident in the same
    /// write.
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

    /// The lock after its holder was proven dead: the first living waiter's, else the taker's,
    /// else free. Dead waiters are dropped and the incident is recorded in the same write. None
    /// when the holder is not dead.
    ///
    /// The caller must have seen the holder's session revoked, or missing for long enough,
    /// before this is *written*; when the lock was read does not matter, because the CAS holds it
    /// to that version. Written first and revoked after, a hung holder could renew in between
    /// and go on believing.
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

    /// The lock after a person ended this grant by force: the first living waiter's, else free,
    /// with the incident in the same write. None when that grant does not hold it.
    ///
    /// Its holder may go on believing until it hears of it: from here on only the token protects.
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

    /// The lock marked as long-held, or no longer so; none when it is so already, or when nobody
    /// holds it and it is to be marked.
    #[must_use]
    pub fn marked_long_held(&self, since: Option<WallTime>) -> Option<Self> {
        let changes = since.is_some() != self.long_held.is_some();
        let makes_sense = since.is_none() || self.grant.is_some();
        (changes && makes_sense).then(|| Self {
            long_held: since,
            ..self.clone()
        })
    }

    /// The record of this grant's end, if there is one. A version that names no grants in its records is
    /// understood by the grant's first token.
    #[must_use]
    pub fn incident_of(&self, grant: &GrantId, base: Token) -> Option<&Incident> {
        self.incidents.iter().find(|one| match &one.grant {
            Some(named) => named == grant,
            None => one.token == base,
        })
    }

    /// The same grant with a new, larger base: after a suspected restore, or when its tokens are
    /// used up. None when this grant does not hold the lock.
    ///
    /// # Errors
    /// [`TokenExhausted`] when no larger base can be made.
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

    /// What the store says of a token. To everybody but the holder's agent, all thousand tokens
    /// from the base on belong to the current grant.
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

    /// The head's, or free when nobody waits.
    fn handed_on(&self, waiters: &Queue, at: Revision, mint: &Mint, now: WallTime) -> Self {
        match waiters.split_head() {
            Some((head, rest)) => self.granted_or_free(head.into_grant(now), rest, at, mint),
            None => self.freed(),
        }
    }

    /// Where no token can be made, or the object is being deleted, the lock is freed without its
    /// queue (a free lock has no waiters); each waiter queues again, or learns why it cannot.
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

    /// The queue entry of this claim.
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
