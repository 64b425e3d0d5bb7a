//! Sessions together with the pods that use them, and those of them that are missing.
//!
//! A session belongs to the pod in its spec. A holder or waiter in another pod that names it has no
//! session. Otherwise the renewals of one pod would keep another pod's locks forever.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::protocol::lock::Lock;
use crate::protocol::observed::{Observed, Sight};
use crate::protocol::session::{Claimant, Session};
use crate::protocol::time::Moment;
use crate::store::fleet::{Object, ObjectRef};

/// A session and a pod: its own, or one that names it in a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodSession {
    pub(super) session: ObjectRef,
    pod: Arc<str>,
    pod_uid: Arc<str>,
}

impl PodSession {
    /// Returns a session and its own pod.
    pub(super) fn of(session: &Object<Session>) -> Self {
        let pod = &session.stored.value.pod;
        Self {
            session: session.object_ref.clone(),
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
        }
    }

    /// Returns the session that a claimant names, and the claimant's pod.
    pub(super) fn named_by(namespace: &Arc<str>, claimant: &Claimant) -> Self {
        Self {
            session: session_ref(namespace, claimant),
            pod: claimant.pod.name.clone(),
            pod_uid: claimant.pod.uid.clone(),
        }
    }

    /// Returns the sessions that a lock's holder and waiters name.
    pub(super) fn named_in(lock: &Object<Lock>) -> impl Iterator<Item = Self> {
        let value = &lock.stored.value;
        let holder = value.grant.iter().map(|grant| &grant.holder);
        let waiters = value.waiters.entries().iter().map(|w| &w.claimant);
        let namespace = &lock.object_ref.namespace;
        let claimants = holder.chain(waiters);
        claimants.map(|claimant| Self::named_by(namespace, claimant))
    }
}

/// The sessions that locks name and that do not exist, or belong to another pod.
#[derive(Debug, Default)]
pub(super) struct MissingSessions {
    observed: BTreeMap<PodSession, Observed>,
    /// The nodes of those that existed before. A holder that was a waiter does not name its node.
    nodes: BTreeMap<PodSession, Arc<str>>,
}

impl MissingSessions {
    pub(super) fn get(&self, session: &PodSession) -> Option<Observed> {
        self.observed.get(session).copied()
    }

    /// Returns the node that a session named, if it existed before.
    pub(super) fn node_of(&self, session: &PodSession) -> Option<&Arc<str>> {
        self.nodes.get(session)
    }

    /// Records the node of a session that is missing from now on.
    pub(super) fn set_node(&mut self, session: PodSession, node: Arc<str>) {
        if self.observed.contains_key(&session) {
            self.nodes.insert(session, node);
        }
    }

    /// Returns all missing sessions.
    pub(super) fn sessions(&self) -> impl Iterator<Item = &ObjectRef> {
        self.observed.keys().map(|named| &named.session)
    }

    /// Observes that sessions are missing.
    pub(super) fn observe(&mut self, sessions: impl Iterator<Item = PodSession>, received: Moment) {
        for session in sessions {
            let observed = Observed::join(self.get(&session), Sight::Missing, received);
            self.observed.insert(session, observed);
        }
    }

    /// Forgets a session that is not missing any more.
    pub(super) fn remove(&mut self, session: &PodSession) {
        self.observed.remove(session);
        self.nodes.remove(session);
    }

    /// Forgets a session that no lock names any more.
    pub(super) fn forget(&mut self, session: &ObjectRef) {
        let first = PodSession {
            session: session.clone(),
            pod: "".into(),
            pod_uid: "".into(),
        };
        let named = self.observed.range(first..).map(|(named, _)| named);
        let named = named.take_while(|named| named.session == *session);
        for named in named.cloned().collect::<Vec<_>>() {
            self.remove(&named);
        }
    }
}

/// Returns the name of a claimant's session object.
pub(in crate::operator) fn session_ref(namespace: &Arc<str>, claimant: &Claimant) -> ObjectRef {
    ObjectRef {
        namespace: namespace.clone(),
        name: claimant.session.as_str().into(),
    }
}
