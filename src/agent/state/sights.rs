//! What the agent saw of the store: locks that were free, other sessions, its highest revision, and
//! own grants that nobody knew. All of it is bounded, and what is forgotten costs a read.

use crate::protocol::ids::{GrantId, Resource, SessionId};
use crate::protocol::key::SessionKey;
use crate::protocol::lock::Lock;
use crate::protocol::observed::{Observed, Sight};
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;
use crate::store::Stored;

use super::State;

/// How many locks' last written states are kept for the next acquire.
const KNOWN_MAX: usize = 1_000;
/// How many unknown own grants are remembered; a forgotten one is found again.
const SUSPECTS_MAX: usize = 1_000;
/// How many other sessions are observed at once.
const OBSERVED_MAX: usize = 1_000;

/// What was seen of another session, and when it was last looked at.
pub(super) struct Sighting {
    observed: Observed,
    looked_at: Moment,
    /// Whether it changed since it was seen first.
    has_changed: bool,
}

impl State {
    /// Remembers a lock object that was written. Only a free lock is worth it: an acquire of it then
    /// needs no read.
    pub(in crate::agent) fn note_if_free(&mut self, stored: &Stored<Lock>) {
        let resource = &stored.value.resource;
        if stored.value.grant.is_some() {
            self.known.remove(resource);
            return;
        }
        if self.known.len() >= KNOWN_MAX && !self.known.contains_key(resource) {
            // The one that was not used for longest: its next acquire costs one read more.
            let oldest = self.known.iter().min_by_key(|(_, lock)| lock.version);
            if let Some(oldest) = oldest.map(|(resource, _)| resource.clone()) {
                self.known.remove(&oldest);
            }
        }
        self.known.insert(resource.clone(), stored.clone());
    }

    /// Takes note of a revision of locks. Where it leapt, the store was restored from a backup, and
    /// the session that is live is from before that.
    #[must_use]
    pub(in crate::agent) fn note_revision(&mut self, revision: Revision) -> Option<SessionId> {
        let seen = self.seen.as_mut()?;
        let has_leapt = seen.highest().leapt_to(revision);
        seen.note(revision);
        let live = self.session.as_ref().filter(|_| has_leapt)?;
        Some(live.id().clone())
    }

    /// The lock as last written, if it was free then. Whoever takes it must be ready for a
    /// `Conflict`.
    pub(in crate::agent) fn take_known(&mut self, resource: &Resource) -> Option<Stored<Lock>> {
        self.known.remove(resource)
    }

    /// Joins a sight of another session to what was seen of it before.
    pub(in crate::agent) fn observe(
        &mut self,
        session: &SessionKey,
        sight: Sight,
        received: Moment,
    ) -> Observed {
        if self.observed.len() >= OBSERVED_MAX && !self.observed.contains_key(session) {
            self.forget_a_sight();
        }
        let before = self.observed(session);
        let observed = Observed::join(before, sight, received);
        let has_changed = self.was_seen_alive(session) || before.is_some_and(|one| one != observed);
        let sighting = Sighting {
            observed,
            looked_at: received,
            has_changed,
        };
        self.observed.insert(session.clone(), sighting);
        observed
    }

    /// What was seen of another session.
    pub(in crate::agent) fn observed(&self, session: &SessionKey) -> Option<Observed> {
        self.observed.get(session).map(|sighting| sighting.observed)
    }

    /// Whether another session was seen to change, as only a living agent changes its session.
    pub(in crate::agent) fn was_seen_alive(&self, session: &SessionKey) -> bool {
        let sighting = self.observed.get(session);
        sighting.is_some_and(|sighting| sighting.has_changed)
    }

    /// Forgets every sight: after a restore an old version may be seen again, and must not look
    /// as if it had been silent all the time.
    pub(in crate::agent) fn forget_sights(&mut self) {
        self.observed.clear();
    }

    /// The one that nobody asked about for longest. Not the one that was silent for longest: that
    /// is the dead one.
    fn forget_a_sight(&mut self) {
        let sights = self.observed.iter();
        let oldest = sights.min_by_key(|(_, sighting)| sighting.looked_at);
        if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
            self.observed.remove(&oldest);
        }
    }

    /// Notes an own grant that nobody here knows; says whether it was noted before.
    pub(in crate::agent) fn suspected_before(&mut self, grant: &GrantId) -> bool {
        if self.suspects.len() >= SUSPECTS_MAX {
            self.suspects.clear();
        }
        !self.suspects.insert(grant.clone())
    }
}
