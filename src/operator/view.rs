//! The observations of the operator: locks, sessions, ended pods and nodes out of service, and
//! since when on its own clock.
//!
//! It is updated by the feeds and by the answers to the operator's own requests, in any order: the
//! newer version of an object counts. It decides nothing; `plan` does.

mod elections;
mod incidents;
mod labelled_namespaces;
mod listing;
mod lock_observation;
mod locks;
mod nodes;
mod object_cache;
mod pod_session;
mod pods;
mod sessions;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Now;
use crate::protocol::lock::Lock;
use crate::protocol::session::{Claimant, Session};
use crate::protocol::time::{Moment, SessionTtl};
use crate::protocol::token::{Mint, Revision, Seen};
use crate::store::fleet::{FeedEvent, NodeReport, Object, ObjectRef, PodReport};
use crate::store::namespaces::{Binding, UninjectedPod};

use self::elections::{Elections, election_of};
use self::labelled_namespaces::LabelledNamespaces;
use self::listing::in_namespace;
use self::locks::Locks;
use self::nodes::OutOfService;
use self::pod_session::{MissingSessions, PodSession};
use self::pods::{EndedPods, PodId};
use self::sessions::{Change, Sessions};
use super::key::Key;
use super::observation::{FeedKind, Observation};

pub(super) use self::elections::{LeaderCheck, Readiness};
pub(super) use self::lock_observation::LockObservation;
pub(super) use self::pod_session::session_ref;
pub(super) use self::sessions::{SessionObservation, SessionState, Unreadable};

/// All observations.
#[derive(Debug, Default)]
pub(super) struct View {
    locks: Locks,
    sessions: Sessions,
    missing: MissingSessions,
    pods: EndedPods,
    nodes: OutOfService,
    elections: Elections,
    labelled: LabelledNamespaces,
    seen: Option<Seen>,
    changed: Vec<Key>,
}

impl View {
    /// Returns whether a list of locks is in progress.
    pub(super) const fn is_listing_locks(&self) -> bool {
        self.locks.listing.is_running()
    }

    /// Returns whether all objects of a feed were listed at least once.
    pub(super) const fn is_listed(&self, kind: FeedKind) -> bool {
        match kind {
            FeedKind::Lock => self.locks.listing.is_complete(),
            FeedKind::Session => self.sessions.listing.is_complete(),
            FeedKind::Pod => self.pods.listing.is_complete(),
            FeedKind::Node => self.nodes.listing.is_complete(),
            _ => self.labelled.is_listed(kind),
        }
    }

    /// Returns whether all objects of these feeds were listed at least once.
    pub(super) fn is_all_listed(&self, mut kinds: impl Iterator<Item = FeedKind>) -> bool {
        kinds.all(|kind| self.is_listed(kind))
    }

    /// Returns whether enough was observed to act. The feed of pods is not needed: silence leads to
    /// the same results later.
    pub(super) const fn may_act(&self) -> bool {
        self.is_listed(FeedKind::Lock) && self.is_listed(FeedKind::Session)
    }

    /// Returns the changed keys since the last call.
    pub(super) fn take_changed(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.changed)
    }

    /// Returns all keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        let sessions = self.sessions.iter().map(|(object_ref, _)| object_ref);
        let locks = self.locks.iter().map(|(object_ref, _)| object_ref);
        let labels = self.elections.keys().cloned().map(Key::Label);
        let leaders = self.elections.keys().cloned().map(Key::Leader);
        (sessions.cloned().map(Key::Session))
            .chain(locks.cloned().map(Key::Lock))
            .chain(labels)
            .chain(leaders)
            .chain(self.labelled.keys())
    }

    pub(super) fn lock(&self, object_ref: &ObjectRef) -> Option<&LockObservation> {
        self.locks.get(object_ref)
    }

    pub(super) fn locks(&self) -> impl Iterator<Item = (&ObjectRef, &LockObservation)> {
        self.locks.iter()
    }

    pub(super) fn session(&self, object_ref: &ObjectRef) -> Option<&SessionObservation> {
        self.sessions.get(object_ref)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = &SessionObservation> {
        self.sessions.iter().map(|(_, seen)| seen)
    }

    /// Returns the locks that cannot be read.
    pub(super) const fn unreadable_locks(&self) -> &BTreeMap<ObjectRef, Unreadable> {
        self.locks.unreadable()
    }

    /// Returns the locks of a namespace that cannot be read.
    pub(super) fn unreadable_locks_in(
        &self,
        namespace: &Arc<str>,
    ) -> impl Iterator<Item = (&ObjectRef, &Unreadable)> {
        in_namespace(self.locks.unreadable(), namespace)
    }

    /// Returns the sessions that cannot be read.
    pub(super) const fn unreadable_sessions(&self) -> &BTreeMap<ObjectRef, Unreadable> {
        self.sessions.unreadable()
    }

    pub(super) const fn elections(&self) -> &Elections {
        &self.elections
    }

    pub(super) const fn labelled(&self) -> &LabelledNamespaces {
        &self.labelled
    }

    /// Returns the highest observed revision; `None` before the first consistent list.
    pub(super) const fn seen(&self) -> Option<Seen> {
        self.seen
    }

    /// Returns what makes fencing tokens; `None` before the first consistent list.
    pub(super) fn mint(&self, floor: u64) -> Option<Mint> {
        self.seen.map(|seen| Mint { seen, floor })
    }

    /// Returns whether the kubelet has reported the end of a session's pod.
    pub(super) fn pod_has_ended(&self, session: &Object<Session>) -> bool {
        let uid = &session.stored.value.pod.uid;
        let pod = (session.object_ref.namespace.clone(), uid.clone());
        !uid.is_empty() && self.pods.contains(&pod)
    }

    /// Returns when a session counts as ended with the node that its pod names. Its own agent wrote the
    /// name, and a wrong one can end only this session.
    pub(super) fn lost_with_node_at(&self, seen: &SessionObservation) -> Option<Moment> {
        let value = &seen.session.stored.value;
        let pod = &value.pod;
        let since = seen.observed.since();
        self.nodes.lost_at(pod, pod.node.as_ref(), value.ttl, since)
    }

    /// Returns the same for a claimant whose session is missing since a moment.
    pub(super) fn missing_lost_with_node_at(
        &self,
        namespace: &Arc<str>,
        claimant: &Claimant,
        since: Moment,
    ) -> Option<Moment> {
        let named = PodSession::named_by(namespace, claimant);
        let node = self.missing.node_of(&named);
        let node = node.or(claimant.pod.node.as_ref());
        let ttl = claimant.session_ttl;
        self.nodes.lost_at(&claimant.pod, node, ttl, since)
    }

    /// Returns the observed state of a claimant's session.
    pub(super) fn session_state(&self, namespace: &Arc<str>, claimant: &Claimant) -> SessionState {
        let named = PodSession::named_by(namespace, claimant);
        let own = self.sessions.get(&named.session);
        let own = own.filter(|seen| PodSession::of(&seen.session) == named);
        if let Some(seen) = own {
            return match &seen.session.stored.value.revoked {
                Some(revocation) => SessionState::Revoked {
                    reason: revocation.reason.clone(),
                    by: revocation.by.clone(),
                    since: seen.observed.since(),
                    alive_at: seen.alive_at,
                },
                None => SessionState::Unrevoked(seen.observed),
            };
        }
        let missing = self.missing.get(&named);
        missing.map_or(SessionState::Unknown, SessionState::Missing)
    }

    /// Returns the TTL by which the expiry of a session is decided: the largest of its own and
    /// those in its holders' entries.
    pub(super) fn ttl_of(&self, session: &Object<Session>) -> SessionTtl {
        let own = session.stored.value.ttl;
        let held = self.locks.held_by(session);
        held.map(|holder| holder.session_ttl)
            .fold(own, SessionTtl::max)
    }

    /// Returns whether a lock's holder or a waiter names this session.
    pub(super) fn is_referenced(&self, session: &ObjectRef) -> bool {
        self.locks.names_session(session)
    }

    /// Returns whether the session's own pod holds a lock or waits for one with it.
    pub(super) fn is_in_use(&self, session: &Object<Session>) -> bool {
        let own = PodSession::of(session);
        self.locks.users_of(&own.session).any(|user| user == own)
    }

    /// Returns whether a namespace has a session. An unreadable session counts.
    pub(super) fn has_session_in(&self, namespace: &Arc<str>) -> bool {
        self.sessions.is_any_in(namespace)
    }

    /// Observes the revision of a consistent list of locks. Returns false if it is below what was
    /// observed `before` the request was sent: the store has lost writes. Later observations may be
    /// newer.
    pub(super) fn observe_revision(&mut self, listed: Revision, before: Option<Seen>) -> bool {
        if before.is_some_and(|mut before| before.list_answered(listed).is_err()) {
            return false;
        }
        match &mut self.seen {
            Some(seen) => seen.note(listed),
            None => self.seen = Some(Seen::from_list(listed)),
        }
        true
    }

    /// Observes an event of a feed, or an answer.
    pub(super) fn observe(&mut self, observation: Observation, now: Now) {
        let received = now.moment;
        match observation {
            Observation::Lock(event) => self.observe_lock(event, now),
            Observation::Session(event) => self.observe_session(event, received),
            Observation::Pod(event) => self.observe_pod(event),
            Observation::Node(event) => self.observe_node(event, received),
            Observation::Namespace(event) => self.observe_namespace(event),
            Observation::Account(event) => self.observe_account(event),
            Observation::Binding(event) => self.observe_binding(event),
            Observation::UninjectedPod(event) => self.observe_uninjected_pod(event),
            Observation::PodOfSession {
                session,
                version,
                report,
            } => {
                self.mark_pod_checked(&session, version);
                let ended = report.and_then(|report| self.pods.apply_report(&report));
                self.plan_sessions_of(ended.as_ref());
            }
            Observation::LabelRemoved {
                election,
                grant,
                is_labelled,
            } => self
                .elections
                .record_removed(&election, grant, is_labelled, received),
            Observation::LabelAdded { election, grant } => {
                self.elections.record_added(&election, &grant);
            }
            Observation::LabelUnknown(election) => self.elections.forget_pods(&election),
            Observation::Leader {
                election,
                grant,
                pod,
            } => {
                let check = LeaderCheck::new(grant, pod, received);
                self.elections.record_check(&election, check);
            }
            Observation::Sidecars(namespace, are_there) => {
                self.labelled.set_sidecars(namespace, are_there, received);
            }
        }
    }

    pub(super) fn observe_lock(&mut self, event: FeedEvent<Object<Lock>>, now: Now) {
        match event {
            FeedEvent::ListStarted => self.locks.start_list(),
            FeedEvent::Applied(lock) => self.put_lock(*lock, now),
            FeedEvent::Unreadable {
                object_ref,
                uid,
                why,
                free,
            } => {
                let unreadable = Unreadable { uid, why };
                let unreferenced =
                    self.locks
                        .put_unreadable(&object_ref, unreadable, free.as_deref(), now);
                self.lock_changed(object_ref, unreferenced, None, now.moment);
            }
            FeedEvent::Deleted(object_ref) => self.remove_lock(object_ref, now.moment),
            FeedEvent::ListDone => {
                for object_ref in self.locks.listing.finish() {
                    self.remove_lock(object_ref, now.moment);
                }
            }
            FeedEvent::Interrupted(_) => {}
        }
    }

    fn put_lock(&mut self, mut lock: Object<Lock>, now: Now) {
        if let Some(seen) = &mut self.seen {
            seen.note(lock.stored.version);
        }
        // Before the keys of the lock are copied from it: the queue keeps them.
        self.locks.share_namespace(&mut lock.object_ref);
        let (object_ref, election) = (lock.object_ref.clone(), election_of(&lock));
        if let Some(unreferenced) = self.locks.put(lock, now) {
            self.lock_changed(object_ref, unreferenced, election, now.moment);
        }
    }

    fn remove_lock(&mut self, object_ref: ObjectRef, received: Moment) {
        let unreferenced = self.locks.remove(&object_ref);
        self.lock_changed(object_ref, unreferenced, None, received);
    }

    /// Records what follows from a change of a lock. A session that no lock names any more may be
    /// deleted, and need not be tracked as missing.
    fn lock_changed(
        &mut self,
        object_ref: ObjectRef,
        unreferenced: Vec<ObjectRef>,
        election: Option<ObjectRef>,
        received: Moment,
    ) {
        for session in unreferenced {
            self.missing.forget(&session);
            self.sessions.mark_referenced(&session, received);
            self.changed.push(Key::Session(session));
        }
        let elections = self.elections.set_election_of(&object_ref, election);
        self.changed.extend(elections);
        let lock = self.locks.get(&object_ref);
        if let Some(lock) = lock.and_then(|seen| seen.lock.as_ref()) {
            let named = PodSession::named_in(lock);
            let foreign = named.filter(|named| self.sessions.belongs_to_another(named));
            self.missing.observe(foreign, received);
        }
        self.changed.push(Key::Lock(object_ref));
    }

    pub(super) fn observe_session(&mut self, event: FeedEvent<Object<Session>>, received: Moment) {
        match event {
            FeedEvent::ListStarted => self.sessions.start_list(),
            FeedEvent::Applied(session) => self.put_session(*session, received),
            // Its locks are planned as if it was not observed: the read of it fails.
            FeedEvent::Unreadable {
                object_ref,
                uid,
                why,
                ..
            } => {
                let unreadable = Unreadable { uid, why };
                self.sessions.put_unreadable(object_ref, unreadable);
            }
            FeedEvent::Deleted(object_ref) => self.observe_session_missing(&object_ref, received),
            FeedEvent::ListDone => {
                for object_ref in self.sessions.listing.finish() {
                    self.observe_session_missing(&object_ref, received);
                }
            }
            FeedEvent::Interrupted(_) => {}
        }
    }

    fn put_session(&mut self, session: Object<Session>, received: Moment) {
        let own = PodSession::of(&session);
        let Some(change) = self.sessions.put(session, received) else {
            return;
        };
        self.missing.remove(&own);
        self.changed.push(Key::Session(own.session.clone()));
        if change == Change::Owner {
            let users = self.locks.users_of(&own.session);
            let foreign = users.filter(|user| self.sessions.belongs_to_another(user));
            self.missing.observe(foreign, received);
        }
        if change != Change::Renewal {
            self.plan_locks_of(&own.session);
        }
    }

    /// Observes that a session does not exist. Names are never reused, so it will not come back.
    pub(super) fn observe_session_missing(&mut self, session: &ObjectRef, received: Moment) {
        let before = self.sessions.get(session).map(|seen| &seen.session);
        let before = before.map(|seen| (PodSession::of(seen), seen.stored.value.pod.node.clone()));
        if self.sessions.remove(session) {
            self.plan_binding_of(&session.namespace);
        }
        if self.is_referenced(session) {
            let users = self.locks.users_of(session);
            self.missing.observe(users, received);
            if let Some((own, Some(node))) = before {
                self.missing.set_node(own, node);
            }
            self.plan_locks_of(session);
        }
    }

    fn plan_locks_of(&mut self, session: &ObjectRef) {
        let locks = self.locks.naming(session);
        self.changed.extend(locks.cloned().map(Key::Lock));
    }

    /// Lets the binding of a namespace be planned after its last session ended.
    fn plan_binding_of(&mut self, namespace: &Arc<str>) {
        let is_bound = self.labelled.binding_of(namespace).is_some();
        if is_bound && !self.has_session_in(namespace) {
            self.changed.push(Key::Binding(namespace.clone()));
        }
    }

    /// Observes a pod, from the feed.
    pub(super) fn observe_pod(&mut self, event: FeedEvent<PodReport>) {
        let ended = self.pods.apply(event);
        self.plan_sessions_of(ended.as_ref());
    }

    /// Observes a node, from the feed.
    pub(super) fn observe_node(&mut self, event: FeedEvent<NodeReport>, received: Moment) {
        if let Some(node) = self.nodes.apply(event, received) {
            let seen = self.sessions.iter();
            let on_it = seen.filter(|(_, seen)| {
                let pod = &seen.session.stored.value.pod;
                pod.node.as_ref() == Some(&node)
            });
            let keys = on_it.map(|(session, _)| Key::Session(session.clone()));
            self.changed.extend(keys);
            let missing: Vec<_> = self.missing.sessions().cloned().collect();
            for session in missing {
                self.plan_locks_of(&session);
            }
        }
    }

    fn plan_sessions_of(&mut self, pod: Option<&PodId>) {
        let sessions = pod.into_iter().flat_map(|pod| self.sessions.of_pod(pod));
        self.changed.extend(sessions.cloned().map(Key::Session));
    }

    /// Records that the pod of this version of a session was read.
    pub(super) fn mark_pod_checked(&mut self, session: &ObjectRef, version: Revision) {
        self.sessions.mark_pod_checked(session, version);
    }

    /// Observes a labelled namespace.
    pub(super) fn observe_namespace(&mut self, event: FeedEvent<Object<()>>) {
        self.changed.extend(self.labelled.observe_namespace(event));
    }

    /// Observes a labelled service account.
    pub(super) fn observe_account(&mut self, event: FeedEvent<Object<()>>) {
        self.changed.extend(self.labelled.observe_account(event));
    }

    pub(super) fn observe_binding(&mut self, event: FeedEvent<Object<Binding>>) {
        self.changed.extend(self.labelled.observe_binding(event));
    }

    /// Observes a pod that requests a sidecar.
    pub(super) fn observe_uninjected_pod(&mut self, event: FeedEvent<Object<UninjectedPod>>) {
        let changed = self.labelled.observe_uninjected_pod(event);
        self.changed.extend(changed);
    }

    /// Forgets which pods have labels: until now another replica wrote them.
    pub(super) fn forget_labels(&mut self) {
        self.elections.forget_all();
    }
}

#[cfg(test)]
mod tests;
