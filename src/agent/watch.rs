//! What the watch and lists report of the locks that the session holds: hand-overs to it, grants that
//! were ended by somebody else, and the sessions that join a held lock's queue, so that a release needs
//! no read.
//!
//! An event is older than its arrival, so grants and losses are compared with the revisions that the
//! agent knows.

use std::collections::BTreeSet;

use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::token::Revision;
use crate::store::{LockEvent, Page, Stored};

use super::Agent;
use super::gone::Found;

impl Agent {
    pub(super) fn note_event(&self, event: LockEvent) {
        match event {
            LockEvent::Held(stored) => self.note_held(*stored),
            LockEvent::Gone { resource, at } => {
                self.note_not_held(&resource, at, &Found::Unread);
            }
            LockEvent::Bookmark(_) => {}
        }
    }

    /// Our session holds this lock: a line's, a lease's, an attempt's under way, or nobody's.
    fn note_held(&self, stored: Stored<Lock>) {
        let Some(key) = stored.value.grant.as_ref().map(Grant::key) else {
            return;
        };
        let resource = stored.value.resource.clone();
        if self.is_of_another_pod(&stored) {
            let found = Found::Read(Some(&stored.value));
            return self.note_not_held(&resource, stored.version, &found);
        }
        let grant = key.id.clone();
        if let Some((_, served, _)) = self.served_grant(&resource)
            && served != key
        {
            // Somebody ended the one that is served, and this one came after it or before.
            let found = Found::Read(Some(&stored.value));
            self.note_not_held(&resource, stored.version, &found);
        }
        let now = self.now();
        {
            // Under one lock: a lease may end, and its grant be kept, at any time.
            let mut state = self.state();
            match state.note_kept(&stored, now) {
                Some(true) => {
                    drop(state);
                    return self.give_back_kept(&resource);
                }
                Some(false) => return,
                None => state.forget_kept_before(&resource, stored.version, now),
            }
            if let Some(is_asked_anew) = state.note_served(&stored, now) {
                drop(state);
                if is_asked_anew {
                    self.pass_on_request(&resource);
                }
                return;
            }
            if let Some(line) = state.lines.get_mut(&resource)
                && line.grant.as_ref() == Some(&grant)
            {
                line.told = Some(stored);
                line.changed.notify_one();
                return;
            }
            if state.core.releases.observe(&grant, &stored) {
                return;
            }
            if state.claimed.contains(&grant) {
                return;
            }
        }
        // It came for nobody, or what is told here is over already; the lock says which.
        let _done = self.clear_leftover(resource, key, None);
    }

    /// At this revision our session did not hold this lock. A lease that is served from an older
    /// grant is over, and a grant that is kept is gone: somebody else ended it. What is under way hears of it when its lease
    /// is made.
    fn note_not_held(&self, resource: &Resource, at: Revision, found: &Found<'_>) {
        let now = self.now();
        let served = {
            let mut state = self.state();
            if let Some(under_way) = state.under_way.get_mut(resource) {
                under_way.gone_at = under_way.gone_at.max(Some(at));
            }
            state.forget_kept_before(resource, at, now);
            state.served_grant(resource)
        };
        let Some((lease, _, seen_at)) = served else {
            return;
        };
        if seen_at < at {
            self.lose_gone(&lease, found);
        }
    }

    /// What the session holds, as the store lists it.
    pub(super) fn note_listed(&self, session: &SessionId, page: Page<Lock>) {
        if self.session_deadline(session).is_none() {
            // It says nothing of what the next session holds.
            return;
        }
        if page.unreadable.is_empty() {
            self.note_missing(session, &page.items, page.revision);
        } else {
            // What is missing may be what somebody made unreadable.
            tracing::warn!(%session, locks = ?page.unreadable, "unreadable locks");
        }
        for stored in page.items {
            self.note_held(stored);
        }
    }

    /// Locks that leases are served from, or attempts under way at, and that a listing of what the
    /// session holds does not have.
    fn note_missing(&self, session: &SessionId, listed: &[Stored<Lock>], at: Revision) {
        let own = listed.iter().filter(|lock| !self.is_of_another_pod(lock));
        let listed: BTreeSet<&Resource> = own.map(|lock| &lock.value.resource).collect();
        let missing: Vec<Resource> = {
            let state = self.state();
            let held = state
                .held
                .iter()
                .filter(|(_, held)| held.session.id == *session);
            let held = held.map(|(resource, _)| resource);
            let missing = held.chain(state.kept.keys()).chain(state.under_way.keys());
            missing.filter(|r| !listed.contains(r)).cloned().collect()
        };
        for resource in missing {
            self.note_not_held(&resource, at, &Found::Unread);
        }
    }
}
