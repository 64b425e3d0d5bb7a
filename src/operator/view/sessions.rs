//! The observations of sessions, and which pod and namespace each of them belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::listing::{Listing, in_namespace};
use super::pod_session::PodSession;
use super::pods::PodId;
use crate::protocol::observed::{Observed, Sight};
use crate::protocol::session::{RevokeReason, Session};
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;
use crate::store::fleet::{Object, ObjectRef};

/// The last observation of a session.
#[derive(Clone, Debug)]
pub(in crate::operator) struct SessionObservation {
    /// The session.
    pub(in crate::operator) session: Arc<Object<Session>>,
    /// Its observed version, and since when.
    pub(in crate::operator) observed: Observed,
    /// When its last renewal was observed, or its first version.
    pub(in crate::operator) alive_at: Moment,
    /// When a lock last named it, or when it was first observed.
    pub(in crate::operator) referenced_until: Moment,
    /// The session's version for which its pod was last read.
    pub(in crate::operator) pod_checked_at: Option<Revision>,
}

/// An object that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) struct Unreadable {
    /// The object's uid.
    pub(in crate::operator) uid: Arc<str>,
    /// Why it cannot be read.
    pub(in crate::operator) why: String,
}

/// The observed state of a claimant's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) enum SessionState {
    /// It exists, belongs to the claimant and is not revoked. It may be silent.
    Unrevoked(Observed),
    /// It is revoked.
    Revoked {
        /// The reason.
        reason: RevokeReason,
        /// The pod or user that revoked it.
        by: Arc<str>,
        /// Since when the revocation has been observed.
        since: Moment,
        /// When its last renewal was observed.
        alive_at: Moment,
    },
    /// It was observed not to exist, or to belong to another pod.
    Missing(Observed),
    /// It was not observed: its lock was observed first, or it was deleted.
    Unknown,
}

#[derive(Debug, Default)]
pub(super) struct Sessions {
    objects: BTreeMap<ObjectRef, SessionObservation>,
    unreadable: BTreeMap<ObjectRef, Unreadable>,
    by_pod: BTreeMap<PodId, BTreeSet<ObjectRef>>,
    pub(super) listing: Listing,
}

/// What a newer version of a session means for the locks that name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The session is new, or belongs to another pod than before.
    Owner,
    /// It was revoked, or is not revoked any more.
    Revocation,
    /// Nothing.
    Renewal,
}

impl Sessions {
    pub(super) fn get(&self, object_ref: &ObjectRef) -> Option<&SessionObservation> {
        self.objects.get(object_ref)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectRef, &SessionObservation)> {
        self.objects.iter()
    }

    pub(super) const fn unreadable(&self) -> &BTreeMap<ObjectRef, Unreadable> {
        &self.unreadable
    }

    /// Returns the sessions of a pod.
    pub(super) fn of_pod(&self, pod: &PodId) -> impl Iterator<Item = &ObjectRef> {
        self.by_pod.get(pod).into_iter().flatten()
    }

    /// Returns whether a namespace has a session. An unreadable session counts.
    pub(super) fn is_any_in(&self, namespace: &Arc<str>) -> bool {
        in_namespace(&self.objects, namespace).next().is_some()
            || in_namespace(&self.unreadable, namespace).next().is_some()
    }

    /// Returns whether a session exists and belongs to another pod than this.
    pub(super) fn belongs_to_another(&self, named: &PodSession) -> bool {
        let found = self.objects.get(&named.session);
        found.is_some_and(|found| PodSession::of(&found.session) != *named)
    }

    pub(super) fn start_list(&mut self) {
        let known = self.objects.keys().chain(self.unreadable.keys());
        self.listing.start(known.cloned());
    }

    /// Observes a session. Returns `None` if the known version is newer.
    pub(super) fn put(&mut self, session: Object<Session>, received: Moment) -> Option<Change> {
        let object_ref = session.object_ref.clone();
        self.listing.deliver(&object_ref);
        let before = self.objects.get(&object_ref);
        let known = before.map(|before| before.session.stored.version);
        if !self.listing.replaces(known, session.stored.version) {
            return None;
        }
        let is_revoked = session.stored.value.revoked.is_some();
        let sight = if is_revoked {
            Sight::Revoked
        } else {
            Sight::Version(session.stored.version)
        };
        let own = PodSession::of(&session);
        let was_alive = before.is_some_and(|seen| seen.session.stored.value.revoked.is_none());
        let change = if before.is_none_or(|before| PodSession::of(&before.session) != own) {
            Change::Owner
        } else if is_revoked || !was_alive {
            Change::Revocation
        } else {
            Change::Renewal
        };
        let alive_at = before.filter(|_| is_revoked).map(|before| before.alive_at);
        let pod = pod_of(&session);
        let seen = SessionObservation {
            observed: Observed::join(before.map(|before| before.observed), sight, received),
            alive_at: alive_at.unwrap_or(received),
            referenced_until: before.map_or(received, |before| before.referenced_until),
            pod_checked_at: before.and_then(|before| before.pod_checked_at),
            session: Arc::new(session),
        };
        self.unreadable.remove(&object_ref);
        self.by_pod
            .entry(pod)
            .or_default()
            .insert(object_ref.clone());
        self.objects.insert(object_ref, seen);
        Some(change)
    }

    /// Observes a session that cannot be read.
    pub(super) fn put_unreadable(&mut self, object_ref: ObjectRef, unreadable: Unreadable) {
        self.listing.deliver(&object_ref);
        self.remove(&object_ref);
        self.unreadable.insert(object_ref, unreadable);
    }

    /// Observes that a session does not exist. Returns whether it was known.
    pub(super) fn remove(&mut self, object_ref: &ObjectRef) -> bool {
        let was_unreadable = self.unreadable.remove(object_ref).is_some();
        let Some(seen) = self.objects.remove(object_ref) else {
            return was_unreadable;
        };
        let pod = pod_of(&seen.session);
        if let Some(sessions) = self.by_pod.get_mut(&pod) {
            sessions.remove(object_ref);
            if sessions.is_empty() {
                self.by_pod.remove(&pod);
            }
        }
        true
    }

    /// Records that locks named a session until now.
    pub(super) fn mark_referenced(&mut self, object_ref: &ObjectRef, until: Moment) {
        if let Some(seen) = self.objects.get_mut(object_ref) {
            seen.referenced_until = until;
        }
    }

    /// Records that the pod of this version of a session was read.
    pub(super) fn mark_pod_checked(&mut self, object_ref: &ObjectRef, version: Revision) {
        if let Some(seen) = self.objects.get_mut(object_ref) {
            seen.pod_checked_at = Some(version);
        }
    }
}

fn pod_of(session: &Object<Session>) -> PodId {
    let uid = session.stored.value.pod.uid.clone();
    (session.object_ref.namespace.clone(), uid)
}
