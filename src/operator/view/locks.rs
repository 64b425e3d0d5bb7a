//! The observations of locks, and which of them name a session.

use std::collections::{BTreeMap, BTreeSet};

use super::listing::Listing;
use super::lock_observation::LockObservation;
use super::pod_session::PodSession;
use super::sessions::Unreadable;
use crate::clock::Now;
use crate::protocol::lock::Lock;
use crate::protocol::session::{Claimant, Session};
use crate::store::fleet::{Object, ObjectRef, UnreadableFreeLock};

#[derive(Debug, Default)]
pub(super) struct Locks {
    objects: BTreeMap<ObjectRef, LockObservation>,
    unreadable: BTreeMap<ObjectRef, Unreadable>,
    /// The locks whose holder or waiters name each session.
    by_session: BTreeMap<ObjectRef, BTreeSet<ObjectRef>>,
    pub(super) listing: Listing,
}

impl Locks {
    pub(super) fn get(&self, object_ref: &ObjectRef) -> Option<&LockObservation> {
        self.objects.get(object_ref)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectRef, &LockObservation)> {
        self.objects.iter()
    }

    pub(super) const fn unreadable(&self) -> &BTreeMap<ObjectRef, Unreadable> {
        &self.unreadable
    }

    pub(super) fn start_list(&mut self) {
        let known = self.objects.keys().chain(self.unreadable.keys());
        self.listing.start(known.cloned());
    }

    /// Observes a lock. Returns the sessions that no lock names any more; `None` if the known
    /// version is newer.
    pub(super) fn put(&mut self, lock: Object<Lock>, now: Now) -> Option<Vec<ObjectRef>> {
        self.listing.deliver(&lock.object_ref);
        let object_ref = lock.object_ref.clone();
        let before = self.objects.get(&object_ref);
        let known = before.map(|before| before.version);
        if !self.listing.replaces(known, lock.stored.version) {
            return None;
        }
        let is_preexisting = before.is_none() && !self.listing.is_complete();
        let unreferenced = self.update_sessions_of(&object_ref, Some(&lock));
        let before = self.objects.get(&object_ref);
        let observation = LockObservation::new(lock, before, is_preexisting, now);
        self.unreadable.remove(&object_ref);
        self.objects.insert(object_ref, observation);
        Some(unreferenced)
    }

    /// Observes a lock that cannot be read. Returns the sessions that no lock names any more.
    pub(super) fn put_unreadable(
        &mut self,
        object_ref: &ObjectRef,
        unreadable: Unreadable,
        free: Option<&UnreadableFreeLock>,
        now: Now,
    ) -> Vec<ObjectRef> {
        self.listing.deliver(object_ref);
        let before = self.objects.get(object_ref);
        let is_preexisting = before.is_none() && !self.listing.is_complete();
        let observation = free.map(|free| {
            LockObservation::unreadable_free(&unreadable.uid, free, before, is_preexisting, now)
        });
        let unreferenced = self.remove(object_ref);
        if let Some(observation) = observation {
            self.objects.insert(object_ref.clone(), observation);
        }
        self.unreadable.insert(object_ref.clone(), unreadable);
        unreferenced
    }

    /// Observes that a lock does not exist. Returns the sessions that no lock names any more.
    pub(super) fn remove(&mut self, object_ref: &ObjectRef) -> Vec<ObjectRef> {
        let unreferenced = self.update_sessions_of(object_ref, None);
        self.unreadable.remove(object_ref);
        self.objects.remove(object_ref);
        unreferenced
    }

    /// Returns the locks that name a session.
    pub(super) fn naming(&self, session: &ObjectRef) -> impl Iterator<Item = &ObjectRef> {
        self.by_session.get(session).into_iter().flatten()
    }

    /// Returns whether a lock's holder or a waiter names this session.
    pub(super) fn names_session(&self, session: &ObjectRef) -> bool {
        self.by_session.contains_key(session)
    }

    /// Returns a session with the pod of each holder and waiter that names it.
    pub(super) fn users_of(&self, session: &ObjectRef) -> impl Iterator<Item = PodSession> {
        let locks = self.naming(session);
        let locks = locks.filter_map(|object_ref| self.get(object_ref)?.lock.as_ref());
        let named = locks.flat_map(|lock| PodSession::named_in(lock));
        named.filter(move |named| named.session == *session)
    }

    /// Returns the claimants with which a session holds locks. An entry in another pod's name does
    /// not count.
    pub(super) fn held_by(&self, session: &Object<Session>) -> impl Iterator<Item = &Claimant> {
        let (name, uid) = (&session.object_ref.name, &session.stored.value.pod.uid);
        self.naming(&session.object_ref)
            .filter_map(|object_ref| self.get(object_ref)?.grant())
            .map(|grant| &grant.holder)
            .filter(move |holder| holder.session.as_str() == &**name && holder.pod.uid == *uid)
    }

    /// Shares the namespace's name with the neighbouring lock, because namespaces have many locks.
    pub(super) fn share_namespace(&self, object_ref: &mut ObjectRef) {
        if let Some((near, _)) = self.objects.range(..&*object_ref).next_back()
            && near.namespace == object_ref.namespace
        {
            object_ref.namespace = near.namespace.clone();
        }
    }

    /// Records the sessions that a lock names now. Returns those that no lock names any more.
    fn update_sessions_of(
        &mut self,
        object_ref: &ObjectRef,
        next: Option<&Object<Lock>>,
    ) -> Vec<ObjectRef> {
        let before = self.objects.get(object_ref);
        let before = before.and_then(|before| before.lock.clone());
        let next: BTreeSet<ObjectRef> = next.into_iter().flat_map(sessions_of).collect();
        let mut unreferenced = Vec::new();
        for session in before.iter().flat_map(|lock| sessions_of(lock)) {
            if next.contains(&session) {
                continue;
            }
            if let Some(locks) = self.by_session.get_mut(&session) {
                locks.remove(object_ref);
                if locks.is_empty() {
                    self.by_session.remove(&session);
                    unreferenced.push(session);
                }
            }
        }
        for session in next {
            let locks = self.by_session.entry(session).or_default();
            locks.insert(object_ref.clone());
        }
        unreferenced
    }
}

fn sessions_of(lock: &Object<Lock>) -> impl Iterator<Item = ObjectRef> {
    PodSession::named_in(lock).map(|named| named.session)
}
