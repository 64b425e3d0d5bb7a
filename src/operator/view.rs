//! The observations of the operator: locks, sessions and ended pods, and since when on its own
//! clock.
//!
//! It is updated by the feeds and by the answers to the operator's own requests, in any order: the
//! newer version of an object counts. It decides nothing; `plan` does.

mod incidents;
mod labelled_namespaces;
mod lock_observation;
mod object_cache;
mod observations;
mod pods;
mod session_index;
mod session_references;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::protocol::lock::Lock;
use crate::protocol::observed::Observed;
use crate::protocol::session::{Claimant, Session};
use crate::protocol::time::{Moment, SessionTtl};
use crate::protocol::token::{Revision, Seen};
use crate::store::fleet::{FeedEvent, Object, ObjectRef, PodReport};

pub use self::incidents::Incidents;
use self::labelled_namespaces::LabelledNamespaces;
pub use self::lock_observation::{FreeLock, FullLock, LockObservation};
pub use self::observations::{Key, SessionObservation, SessionState, Unreadable};
use self::pods::{EndedPods, PodId};
use self::session_index::SessionIndex;
use self::session_references::{SessionReference, sessions_of};
use super::errors::FeedKind;
use super::label::{self, Elections};
use super::plan::Now;

/// All observations.
#[derive(Debug, Default)]
pub struct View {
    locks: BTreeMap<ObjectRef, LockObservation>,
    sessions: BTreeMap<ObjectRef, SessionObservation>,
    session_index: SessionIndex,
    /// The sessions of each pod.
    by_pod: BTreeMap<PodId, BTreeSet<ObjectRef>>,
    /// The references to sessions that do not exist, or that belong to another pod.
    missing: BTreeMap<SessionReference, Observed>,
    pods: EndedPods,
    unreadable: BTreeMap<Key, Unreadable>,
    elections: Elections,
    /// The election that each lock decides, if any.
    election_of_lock: BTreeMap<ObjectRef, ObjectRef>,
    labelled: LabelledNamespaces,
    /// The number of sessions in each namespace that has any.
    sessions_in: BTreeMap<Arc<str>, usize>,
    unlisted_locks: Option<BTreeSet<ObjectRef>>,
    unlisted_sessions: Option<BTreeSet<ObjectRef>>,
    complete: [bool; 2],
    seen: Option<Seen>,
    changed: Vec<Key>,
}

impl View {
    /// Returns whether all watched kinds were listed at least once.
    pub(super) fn is_listed_all(&self, watched: impl Fn(FeedKind) -> bool) -> bool {
        let mut kinds = FeedKind::ALL.into_iter().filter(|kind| watched(*kind));
        kinds.all(|kind| self.is_listed(kind))
    }

    /// Returns whether a list of locks is in progress.
    pub(super) const fn is_listing_locks(&self) -> bool {
        self.unlisted_locks.is_some()
    }

    /// Returns whether all objects of a feed were listed at least once.
    pub(super) const fn is_listed(&self, kind: FeedKind) -> bool {
        match kind {
            FeedKind::Lock => self.complete[0],
            FeedKind::Session => self.complete[1],
            FeedKind::Pod => self.pods.is_complete,
            _ => self.labelled.is_listed(kind),
        }
    }

    /// Returns whether enough was observed to act. The feed of pods is not needed: silence leads to
    /// the same results later.
    #[must_use]
    pub fn may_act(&self) -> bool {
        self.complete.iter().all(|complete| *complete)
    }

    /// Returns the changed keys since the last call.
    pub fn take_changed(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.changed)
    }

    /// Returns all keys.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        let sessions = self.sessions.keys().cloned().map(Key::Session);
        let locks = self.locks.keys().cloned().map(Key::Lock);
        let labels = self.elections.keys().cloned().map(Key::Label);
        let leaders = self.elections.keys().cloned().map(Key::Leader);
        sessions
            .chain(locks)
            .chain(labels)
            .chain(leaders)
            .chain(self.bound_namespaces())
            .chain(self.pods_without_sidecar())
    }

    /// Returns a lock.
    #[must_use]
    pub fn lock(&self, object_ref: &ObjectRef) -> Option<&LockObservation> {
        self.locks.get(object_ref)
    }

    /// Returns all locks.
    pub fn locks(&self) -> impl Iterator<Item = (&ObjectRef, &LockObservation)> {
        self.locks.iter()
    }

    /// Returns a session.
    #[must_use]
    pub fn session(&self, object_ref: &ObjectRef) -> Option<&SessionObservation> {
        self.sessions.get(object_ref)
    }

    /// Returns all sessions.
    pub fn sessions(&self) -> impl Iterator<Item = &SessionObservation> {
        self.sessions.values()
    }

    /// Returns the unreadable objects.
    #[must_use]
    pub const fn unreadable(&self) -> &BTreeMap<Key, Unreadable> {
        &self.unreadable
    }

    /// Returns the elections, and the pods that were observed with their labels.
    #[must_use]
    pub const fn elections(&self) -> &Elections {
        &self.elections
    }

    pub(super) const fn elections_mut(&mut self) -> &mut Elections {
        &mut self.elections
    }

    /// Returns the unreadable locks.
    pub fn unreadable_locks(&self) -> impl Iterator<Item = (&ObjectRef, &Unreadable)> {
        self.unreadable
            .iter()
            .filter_map(|(key, unreadable)| match key {
                Key::Lock(object_ref) => Some((object_ref, unreadable)),
                _ => None,
            })
    }

    /// Returns the unreadable locks of a namespace.
    pub fn unreadable_locks_in(
        &self,
        namespace: &Arc<str>,
    ) -> impl Iterator<Item = (&ObjectRef, &Unreadable)> {
        let first = Key::Lock(ObjectRef {
            namespace: namespace.clone(),
            name: "".into(),
        });
        let found = self.unreadable.range(first..);
        found.map_while(move |(key, unreadable)| match key {
            Key::Lock(object_ref) if object_ref.namespace == *namespace => {
                Some((object_ref, unreadable))
            }
            _ => None,
        })
    }

    fn unreadable_sessions(&self) -> impl Iterator<Item = ObjectRef> {
        self.unreadable.keys().filter_map(|key| match key {
            Key::Session(object_ref) => Some(object_ref.clone()),
            _ => None,
        })
    }

    /// Returns the highest observed revision; `None` before the first consistent list.
    #[must_use]
    pub const fn seen(&self) -> Option<Seen> {
        self.seen
    }

    /// Returns whether the kubelet has reported the end of a session's pod.
    #[must_use]
    pub fn pod_has_ended(&self, session: &Object<Session>) -> bool {
        let uid = &session.stored.value.pod.uid;
        let pod = (session.object_ref.namespace.clone(), uid.clone());
        !uid.is_empty() && self.pods.contains(&pod)
    }

    /// Returns the observed state of a claimant's session.
    #[must_use]
    pub fn session_state(&self, namespace: &Arc<str>, claimant: &Claimant) -> SessionState {
        let reference = SessionReference::of(namespace, claimant);
        let object_ref = session_ref(namespace, claimant);
        let own = self.sessions.get(&object_ref);
        let own = own.filter(|seen| SessionReference::own(&seen.session) == reference);
        if let Some(seen) = own {
            return match &seen.session.stored.value.revoked {
                Some(revocation) => SessionState::Revoked {
                    reason: revocation.reason.clone(),
                    by: revocation.by.clone(),
                    since: seen.observed.since(),
                },
                None => SessionState::Unrevoked(seen.observed),
            };
        }
        match self.missing.get(&reference) {
            Some(observed) => SessionState::Missing(*observed),
            None => SessionState::Unknown,
        }
    }

    /// Returns the TTL by which the expiry of a session is decided: the largest of its own and
    /// those in its holders' entries.
    #[must_use]
    pub fn ttl_of(&self, session: &Object<Session>) -> SessionTtl {
        let own = session.stored.value.ttl;
        let said = self.held_by(session);
        said.map(|lock| lock.session_ttl).fold(own, SessionTtl::max)
    }

    /// Returns the claimants with which a session holds locks. An entry in another pod's name does
    /// not count.
    fn held_by(&self, session: &Object<Session>) -> impl Iterator<Item = &Claimant> {
        let (name, uid) = (&session.object_ref.name, &session.stored.value.pod.uid);
        self.session_index
            .locks_of(&session.object_ref)
            .filter_map(|object_ref| self.locks.get(object_ref)?.grant())
            .map(|grant| &grant.holder)
            .filter(move |holder| holder.session.as_str() == &**name && holder.pod.uid == *uid)
    }

    /// Returns whether a lock's holder or a waiter names this session.
    #[must_use]
    pub fn is_referenced(&self, session: &ObjectRef) -> bool {
        self.session_index.is_referenced(session)
    }

    /// Observes the revision of a consistent list of locks. Returns false if it is below what was
    /// observed `before` the request was sent: the store has lost writes. Later observations may be
    /// newer.
    pub fn observe_revision(&mut self, listed: Revision, before: Option<Seen>) -> bool {
        if before.is_some_and(|mut before| before.list_answered(listed).is_err()) {
            return false;
        }
        match &mut self.seen {
            Some(seen) => seen.note(listed),
            None => self.seen = Some(Seen::from_list(listed)),
        }
        true
    }

    /// Observes a lock, from a feed or an answer.
    pub fn observe_lock(&mut self, event: FeedEvent<Object<Lock>>, now: Now) {
        let received = now.moment;
        match event {
            FeedEvent::ListStarted => {
                let unreadable = self.unreadable_locks().map(|(object_ref, _)| object_ref);
                self.unlisted_locks = Some(self.locks.keys().chain(unreadable).cloned().collect());
            }
            FeedEvent::Applied(lock) => {
                if let Some(old) = &mut self.unlisted_locks {
                    old.remove(&lock.object_ref);
                }
                self.put_lock(*lock, now);
            }
            FeedEvent::Unreadable {
                object_ref,
                uid,
                why,
                free,
            } => {
                if let Some(old) = &mut self.unlisted_locks {
                    old.remove(&object_ref);
                }
                let before = self.locks.get(&object_ref);
                let is_preexisting = before.is_none() && !self.complete[0];
                let observation = free.map(|free| {
                    LockObservation::unreadable_free(&uid, &free, before, is_preexisting, now)
                });
                self.remove_lock(&object_ref, received);
                if let Some(observation) = observation {
                    self.locks.insert(object_ref.clone(), observation);
                }
                let unreadable = Unreadable { uid, why };
                self.unreadable.insert(Key::Lock(object_ref), unreadable);
            }
            FeedEvent::Deleted(object_ref) => self.remove_lock(&object_ref, received),
            FeedEvent::ListDone => {
                for object_ref in self.unlisted_locks.take().unwrap_or_default() {
                    self.remove_lock(&object_ref, received);
                }
                self.complete[0] = true;
            }
            FeedEvent::Interrupted(_) => {}
        }
    }

    fn put_lock(&mut self, mut lock: Object<Lock>, now: Now) {
        self.share_namespace(&mut lock.object_ref);
        let object_ref = lock.object_ref.clone();
        let key = Key::Lock(object_ref.clone());
        if let Some(seen) = &mut self.seen {
            seen.note(lock.stored.version);
        }
        let before = self.locks.get(&object_ref);
        let known = before.map(LockObservation::version);
        if !replaces(known, lock.stored.version, self.unlisted_locks.is_some()) {
            return;
        }
        let is_preexisting = before.is_none() && !self.complete[0];
        self.unreadable.remove(&key);
        self.update_session_index(&object_ref, Some(&lock), now.moment);
        self.update_election(&object_ref, election_of(&lock));
        let before = self.locks.get(&object_ref);
        let observation = LockObservation::new(lock, before, is_preexisting, now);
        self.locks.insert(object_ref.clone(), observation);
        self.mark_foreign_references_in(&object_ref, now.moment);
        self.changed.push(key);
    }

    /// Shares the namespace's name with the neighbouring lock, because namespaces have many locks.
    fn share_namespace(&self, object_ref: &mut ObjectRef) {
        if let Some((near, _)) = self.locks.range(..&*object_ref).next_back()
            && near.namespace == object_ref.namespace
        {
            object_ref.namespace = near.namespace.clone();
        }
    }

    /// Records which election a lock decides now, if any.
    fn update_election(&mut self, lock: &ObjectRef, election: Option<ObjectRef>) {
        let before = self.election_of_lock.remove(lock);
        if let Some(before) = before.filter(|before| Some(before) != election.as_ref()) {
            self.elections.remove_lock(&before, lock);
            self.changed.push(Key::Label(before));
        }
        if let Some(election) = election {
            self.elections.add_lock(election.clone(), lock.clone());
            self.election_of_lock.insert(lock.clone(), election.clone());
            self.changed.push(Key::Label(election.clone()));
            self.changed.push(Key::Leader(election));
        }
    }

    fn remove_lock(&mut self, object_ref: &ObjectRef, received: Moment) {
        self.update_session_index(object_ref, None, received);
        self.unreadable.remove(&Key::Lock(object_ref.clone()));
        self.locks.remove(object_ref);
        self.update_election(object_ref, None);
        self.changed.push(Key::Lock(object_ref.clone()));
    }

    /// Records the sessions that a lock names now. A session without references may be deleted, and
    /// need not be tracked as missing.
    fn update_session_index(
        &mut self,
        object_ref: &ObjectRef,
        next: Option<&Object<Lock>>,
        received: Moment,
    ) {
        let before = self.locks.get(object_ref);
        let before = before.and_then(LockObservation::full);
        let before = before.into_iter().flat_map(|seen| sessions_of(&seen.lock));
        let next = next.into_iter().flat_map(sessions_of);
        for session in self.session_index.update(object_ref, before, next) {
            self.forget_missing(&session);
            if let Some(seen) = self.sessions.get_mut(&session) {
                seen.referenced_until = received;
            }
            self.changed.push(Key::Session(session));
        }
    }

    /// Observes a pod, from the feed.
    pub fn observe_pod(&mut self, event: FeedEvent<PodReport>) {
        let ended = self.pods.apply(event);
        self.requeue_sessions_of(ended);
    }

    /// Observes the kubelet's report of a pod, from the feed or an answer.
    pub fn observe_pod_report(&mut self, pod: &PodReport) {
        let ended = self.pods.apply_report(pod);
        self.requeue_sessions_of(ended);
    }

    fn requeue_sessions_of(&mut self, pod: Option<PodId>) {
        let sessions = pod.and_then(|pod| self.by_pod.get(&pod));
        let sessions = sessions.into_iter().flatten();
        self.changed.extend(sessions.cloned().map(Key::Session));
    }

    /// Records that the pod of this version of a session was read.
    pub fn mark_pod_checked(&mut self, object_ref: &ObjectRef, version: Revision) {
        if let Some(seen) = self.sessions.get_mut(object_ref) {
            seen.pod_checked_at = Some(version);
        }
    }
}

/// Returns the name of a claimant's session object.
#[must_use]
pub fn session_ref(namespace: &Arc<str>, claimant: &Claimant) -> ObjectRef {
    ObjectRef {
        namespace: namespace.clone(),
        name: claimant.session.as_str().into(),
    }
}

fn election_of(lock: &Object<Lock>) -> Option<ObjectRef> {
    // Candidates use the lock object with the name of its resource. Another object with that
    // resource decides no election.
    let election = label::election_of(&lock.object_ref.namespace, &lock.stored.value.resource);
    election.filter(|_| !lock.is_misnamed)
}

fn pod_of(session: &Object<Session>) -> PodId {
    let uid = session.stored.value.pod.uid.clone();
    (session.object_ref.namespace.clone(), uid)
}

/// Returns whether a version has to replace the known one. Answers and events come in any order, so
/// only a newer version does; but a list of a restored store has older ones.
fn replaces(known: Option<Revision>, version: Revision, is_listing: bool) -> bool {
    known.is_none_or(|known| version > known || (is_listing && version != known))
}

#[cfg(test)]
mod tests;
