//! What the operator has seen: locks, sessions and ended pods, and since when on its own clock.
//!
//! It is fed by the feeds and by the answers to the operator's own calls, in any order: of two
//! states of one object the newer one counts. It decides nothing; `plan` does.

mod claims;
mod kept;
mod labelled;
mod listed;
mod naming;
mod pods;
mod record;
mod seen;
mod sessions;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::protocol::lock::Lock;
use crate::protocol::observed::Observed;
use crate::protocol::session::{Claimant, Session};
use crate::protocol::time::{Moment, SessionTtl};
use crate::protocol::token::{Revision, Seen};
use crate::store::fleet::{FeedEvent, Object, ObjectRef, PodReport};

use self::claims::{Claim, sessions_of};
pub use self::kept::{FreeLock, KeptLock, SeenLock};
use self::labelled::Labelled;
use self::naming::Naming;
use self::pods::{EndedPods, PodId};
pub use self::record::Record;
pub use self::seen::{Key, Life, SeenSession, Unreadable};
use super::label::{self, Elections};
use super::plan::Now;
use super::trouble::Kind;

/// What was seen.
#[derive(Debug, Default)]
pub struct View {
    locks: BTreeMap<ObjectRef, KeptLock>,
    sessions: BTreeMap<ObjectRef, SeenSession>,
    naming: Naming,
    /// Which sessions a pod has.
    by_pod: BTreeMap<PodId, BTreeSet<ObjectRef>>,
    /// Who names sessions that are not there, or another pod's.
    missing: BTreeMap<Claim, Observed>,
    pods: EndedPods,
    unreadable: BTreeMap<Key, Unreadable>,
    elections: Elections,
    /// The locks that decide an election, and which.
    deciding: BTreeMap<ObjectRef, ObjectRef>,
    labelled: Labelled,
    /// How many sessions a namespace has, where it has any.
    sessions_in: BTreeMap<Arc<str>, usize>,
    old_locks: Option<BTreeSet<ObjectRef>>,
    old_sessions: Option<BTreeSet<ObjectRef>>,
    complete: [bool; 2],
    seen: Option<Seen>,
    changed: Vec<Key>,
}

impl View {
    /// Whether everything of these kinds was told at least once.
    pub(super) fn is_complete(&self, watched: impl Fn(Kind) -> bool) -> bool {
        let mut kinds = Kind::ALL.into_iter().filter(|kind| watched(*kind));
        kinds.all(|kind| self.has_all(kind))
    }

    /// Whether all locks are being told anew.
    pub(super) const fn is_listing_locks(&self) -> bool {
        self.old_locks.is_some()
    }

    /// Whether everything that a feed is about was told at least once.
    pub(super) const fn has_all(&self, kind: Kind) -> bool {
        match kind {
            Kind::Lock => self.complete[0],
            Kind::Session => self.complete[1],
            Kind::Pod => self.pods.is_complete,
            _ => self.labelled.has_all(kind),
        }
    }

    /// Whether enough is known to act. What a pod's end would tell, silence tells later.
    #[must_use]
    pub fn may_act(&self) -> bool {
        self.complete.iter().all(|complete| *complete)
    }

    /// What has changed since this was asked last.
    pub fn take_changed(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.changed)
    }

    /// All that there is to decide about.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        let sessions = self.sessions.keys().cloned().map(Key::Session);
        let locks = self.locks.keys().cloned().map(Key::Lock);
        let labels = self.elections.places().cloned().map(Key::Label);
        let leaders = self.elections.places().cloned().map(Key::Leader);
        sessions
            .chain(locks)
            .chain(labels)
            .chain(leaders)
            .chain(self.bound_namespaces())
            .chain(self.pods_without_sidecar())
    }

    /// A lock.
    #[must_use]
    pub fn lock(&self, object_ref: &ObjectRef) -> Option<&KeptLock> {
        self.locks.get(object_ref)
    }

    /// All locks.
    pub fn locks(&self) -> impl Iterator<Item = (&ObjectRef, &KeptLock)> {
        self.locks.iter()
    }

    /// A session.
    #[must_use]
    pub fn session(&self, object_ref: &ObjectRef) -> Option<&SeenSession> {
        self.sessions.get(object_ref)
    }

    /// All sessions.
    pub fn sessions(&self) -> impl Iterator<Item = &SeenSession> {
        self.sessions.values()
    }

    /// What could not be read, and why.
    #[must_use]
    pub const fn unreadable(&self) -> &BTreeMap<Key, Unreadable> {
        &self.unreadable
    }

    /// The elections, and who was seen to have their labels.
    #[must_use]
    pub const fn elections(&self) -> &Elections {
        &self.elections
    }

    pub(super) const fn elections_mut(&mut self) -> &mut Elections {
        &mut self.elections
    }

    /// The locks that could not be read.
    pub fn unreadable_locks(&self) -> impl Iterator<Item = (&ObjectRef, &Unreadable)> {
        self.unreadable
            .iter()
            .filter_map(|(key, unreadable)| match key {
                Key::Lock(object_ref) => Some((object_ref, unreadable)),
                _ => None,
            })
    }

    /// Those of a namespace.
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

    /// The highest revision of locks that was seen, once a consistent listing began it.
    #[must_use]
    pub const fn seen(&self) -> Option<Seen> {
        self.seen
    }

    /// Whether the kubelet reported the pod of a session as ended.
    #[must_use]
    pub fn pod_has_ended(&self, session: &Object<Session>) -> bool {
        let uid = &session.stored.value.pod.uid;
        let pod = (session.object_ref.namespace.clone(), uid.clone());
        !uid.is_empty() && self.pods.has(&pod)
    }

    /// What is known of the session of a claimant in a namespace.
    #[must_use]
    pub fn life_of(&self, namespace: &Arc<str>, claimant: &Claimant) -> Life {
        let claim = Claim::of(namespace, claimant);
        let object_ref = session_place(namespace, claimant);
        let own = self.sessions.get(&object_ref);
        let own = own.filter(|seen| Claim::own(&seen.session) == claim);
        if let Some(seen) = own {
            return match &seen.session.stored.value.revoked {
                Some(revocation) => Life::Revoked {
                    reason: revocation.reason.clone(),
                    by: revocation.by.clone(),
                    since: seen.observed.since(),
                },
                None => Life::Session(seen.observed),
            };
        }
        match self.missing.get(&claim) {
            Some(observed) => Life::Missing(*observed),
            None => Life::Unseen,
        }
    }

    /// The largest TTL by which a session is to be judged: its own, or what a holder's entry says.
    #[must_use]
    pub fn ttl_of(&self, session: &Object<Session>) -> SessionTtl {
        let own = session.stored.value.ttl;
        let said = self.held_by(session);
        said.map(|lock| lock.session_ttl).fold(own, SessionTtl::max)
    }

    /// The claims by which a session holds locks. What a lock says in another pod's name is no word
    /// of this one.
    fn held_by(&self, session: &Object<Session>) -> impl Iterator<Item = &Claimant> {
        let (name, uid) = (&session.object_ref.name, &session.stored.value.pod.uid);
        self.naming
            .locks_of(&session.object_ref)
            .filter_map(|object_ref| self.locks.get(object_ref)?.grant())
            .map(|grant| &grant.holder)
            .filter(move |holder| holder.session.as_str() == &**name && holder.pod.uid == *uid)
    }

    /// Whether a lock's holder or a waiter names this session.
    #[must_use]
    pub fn is_named(&self, session: &ObjectRef) -> bool {
        self.naming.is_named(session)
    }

    /// Takes note of the revision that a consistent listing of locks answered with. False when it
    /// is older than what had been seen `before` it was asked for: the store has lost writes. What
    /// the feeds told since may well be newer.
    pub fn note_revision(&mut self, listed: Revision, before: Option<Seen>) -> bool {
        if before.is_some_and(|mut before| before.list_answered(listed).is_err()) {
            return false;
        }
        match &mut self.seen {
            Some(seen) => seen.note(listed),
            None => self.seen = Some(Seen::from_list(listed)),
        }
        true
    }

    /// Takes note of a lock that a feed or an answer told of.
    pub fn note_lock(&mut self, told: FeedEvent<Object<Lock>>, now: Now) {
        let received = now.moment;
        match told {
            FeedEvent::ListStarted => {
                let unreadable = self.unreadable_locks().map(|(object_ref, _)| object_ref);
                self.old_locks = Some(self.locks.keys().chain(unreadable).cloned().collect());
            }
            FeedEvent::Applied(lock) => {
                if let Some(old) = &mut self.old_locks {
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
                if let Some(old) = &mut self.old_locks {
                    old.remove(&object_ref);
                }
                let before = self.locks.get(&object_ref);
                let is_found = before.is_none() && !self.complete[0];
                let kept = free.map(|free| KeptLock::remains(&uid, &free, before, is_found, now));
                self.remove_lock(&object_ref, received);
                if let Some(kept) = kept {
                    self.locks.insert(object_ref.clone(), kept);
                }
                let unreadable = Unreadable { uid, why };
                self.unreadable.insert(Key::Lock(object_ref), unreadable);
            }
            FeedEvent::Deleted(object_ref) => self.remove_lock(&object_ref, received),
            FeedEvent::ListDone => {
                for object_ref in self.old_locks.take().unwrap_or_default() {
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
        let known = before.map(KeptLock::version);
        if !is_news(known, lock.stored.version, self.old_locks.is_some()) {
            return;
        }
        let is_found = before.is_none() && !self.complete[0];
        self.unreadable.remove(&key);
        self.note_names(&object_ref, Some(&lock), now.moment);
        self.note_election(&object_ref, election_of(&lock));
        let before = self.locks.get(&object_ref);
        let kept = KeptLock::new(lock, before, is_found, now);
        self.locks.insert(object_ref.clone(), kept);
        self.miss_sessions_of_strangers_in(&object_ref, now.moment);
        self.changed.push(key);
    }

    /// Namespaces have many locks: their name is kept once for those beside each other.
    fn share_namespace(&self, object_ref: &mut ObjectRef) {
        if let Some((near, _)) = self.locks.range(..&*object_ref).next_back()
            && near.namespace == object_ref.namespace
        {
            object_ref.namespace = near.namespace.clone();
        }
    }

    /// A lock decides this election, or none (any more).
    fn note_election(&mut self, lock: &ObjectRef, election: Option<ObjectRef>) {
        let before = self.deciding.remove(lock);
        if let Some(before) = before.filter(|before| Some(before) != election.as_ref()) {
            self.elections.note_no_lock(&before, lock);
            self.changed.push(Key::Label(before));
        }
        if let Some(election) = election {
            self.elections.note_lock(election.clone(), lock.clone());
            self.deciding.insert(lock.clone(), election.clone());
            self.changed.push(Key::Label(election.clone()));
            self.changed.push(Key::Leader(election));
        }
    }

    fn remove_lock(&mut self, object_ref: &ObjectRef, received: Moment) {
        self.note_names(object_ref, None, received);
        self.unreadable.remove(&Key::Lock(object_ref.clone()));
        self.locks.remove(object_ref);
        self.note_election(object_ref, None);
        self.changed.push(Key::Lock(object_ref.clone()));
    }

    /// Takes note of the sessions that a lock names from now on. One that nothing names any more may
    /// be deleted, and need not be missed.
    fn note_names(
        &mut self,
        object_ref: &ObjectRef,
        next: Option<&Object<Lock>>,
        received: Moment,
    ) {
        let before = self.locks.get(object_ref);
        let before = before.and_then(KeptLock::full);
        let before = before.into_iter().flat_map(|seen| sessions_of(&seen.lock));
        let next = next.into_iter().flat_map(sessions_of);
        for session in self.naming.change(object_ref, before, next) {
            self.forget_missing(&session);
            if let Some(seen) = self.sessions.get_mut(&session) {
                seen.named_until = received;
            }
            self.changed.push(Key::Session(session));
        }
    }

    /// Takes note of a pod that a feed told of.
    pub fn note_pod(&mut self, told: FeedEvent<PodReport>) {
        let ended = self.pods.note(told);
        self.look_again_at_sessions_of(ended);
    }

    /// Takes note of what the kubelet reports of a pod, however it was heard.
    pub fn note_pod_report(&mut self, pod: &PodReport) {
        let ended = self.pods.note_report(pod);
        self.look_again_at_sessions_of(ended);
    }

    fn look_again_at_sessions_of(&mut self, pod: Option<PodId>) {
        let sessions = pod.and_then(|pod| self.by_pod.get(&pod));
        let sessions = sessions.into_iter().flatten();
        self.changed.extend(sessions.cloned().map(Key::Session));
    }

    /// The pod of this version of a session was looked at.
    pub fn note_pod_looked_at(&mut self, object_ref: &ObjectRef, version: Revision) {
        if let Some(seen) = self.sessions.get_mut(object_ref) {
            seen.pod_looked_at = Some(version);
        }
    }
}

/// Where the session of a claimant is.
#[must_use]
pub fn session_place(namespace: &Arc<str>, claimant: &Claimant) -> ObjectRef {
    ObjectRef {
        namespace: namespace.clone(),
        name: claimant.session.as_str().into(),
    }
}

fn election_of(lock: &Object<Lock>) -> Option<ObjectRef> {
    // Candidates look for the lock under its own name: under another one, nobody runs for it.
    let election = label::election_of(&lock.object_ref.namespace, &lock.stored.value.resource);
    election.filter(|_| !lock.is_misnamed)
}

fn pod_of(session: &Object<Session>) -> PodId {
    let uid = session.stored.value.pod.uid.clone();
    (session.object_ref.namespace.clone(), uid)
}

/// Whether a version is another one than what is known. Answers and feeds come in any order, so
/// only a newer one is; but a listing of a store that was restored has older ones.
fn is_news(known: Option<Revision>, version: Revision, is_listed: bool) -> bool {
    known.is_none_or(|known| version > known || (is_listed && version != known))
}

#[cfg(test)]
mod tests;
