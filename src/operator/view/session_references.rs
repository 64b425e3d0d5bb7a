//! The references of locks to sessions, and whether they are valid.
//!
//! A session belongs to the pod in its spec. A holder or waiter in another pod that names it has no
//! session. Otherwise the renewals of one pod would keep another pod's locks forever.

use std::sync::Arc;

use super::{LockObservation, View, session_ref};
use crate::protocol::lock::Lock;
use crate::protocol::observed::{Observed, Sight};
use crate::protocol::session::{Claimant, Session};
use crate::protocol::time::Moment;
use crate::store::fleet::{Object, ObjectRef};

/// A reference to a session by a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SessionReference {
    session: ObjectRef,
    pod: Arc<str>,
    pod_uid: Arc<str>,
}

impl SessionReference {
    pub(super) fn of(namespace: &Arc<str>, claimant: &Claimant) -> Self {
        Self {
            session: session_ref(namespace, claimant),
            pod: claimant.pod.name.clone(),
            pod_uid: claimant.pod.uid.clone(),
        }
    }

    /// Returns the reference by the session's own pod.
    pub(super) fn own(session: &Object<Session>) -> Self {
        let pod = &session.stored.value.pod;
        Self {
            session: session.object_ref.clone(),
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
        }
    }
}

pub(super) fn references_of(lock: &Object<Lock>) -> impl Iterator<Item = SessionReference> {
    let value = &lock.stored.value;
    let holder = value.grant.iter().map(|grant| &grant.holder);
    let waiters = value.waiters.entries().iter().map(|w| &w.claimant);
    let namespace = &lock.object_ref.namespace;
    let claimants = holder.chain(waiters);
    claimants.map(|claimant| SessionReference::of(namespace, claimant))
}

pub(super) fn sessions_of(lock: &Object<Lock>) -> impl Iterator<Item = ObjectRef> {
    references_of(lock).map(|reference| reference.session)
}

impl View {
    /// Returns the references to a session.
    fn references_to(&self, session: &ObjectRef) -> impl Iterator<Item = SessionReference> {
        let locks = self.session_index.locks_of(session);
        let locks = locks.filter_map(|object_ref| self.locks.get(object_ref)?.full());
        let references = locks.flat_map(|seen| references_of(&seen.lock));
        references.filter(move |reference| reference.session == *session)
    }

    /// Returns whether the session's own pod holds a lock or waits for one with it.
    #[must_use]
    pub fn is_in_use(&self, session: &Object<Session>) -> bool {
        let own = SessionReference::own(session);
        self.references_to(&session.object_ref)
            .any(|reference| reference == own)
    }

    /// Marks the session as missing for entries of a lock that name another pod's session.
    pub(super) fn mark_foreign_references_in(&mut self, lock: &ObjectRef, received: Moment) {
        let Some(seen) = self.locks.get(lock).and_then(LockObservation::full) else {
            return;
        };
        let foreign =
            references_of(&seen.lock).filter(|reference| self.is_foreign_reference(reference));
        let foreign: Vec<SessionReference> = foreign.collect();
        self.mark_missing(foreign, received);
    }

    /// Marks the session as missing for other pods that name it, when it is first observed.
    pub(super) fn mark_foreign_references_to(&mut self, session: &ObjectRef, received: Moment) {
        let references = self.references_to(session);
        let foreign = references.filter(|reference| self.is_foreign_reference(reference));
        let foreign: Vec<SessionReference> = foreign.collect();
        self.mark_missing(foreign, received);
    }

    /// Marks a session that does not exist as missing for all references.
    pub(super) fn mark_references_missing(&mut self, session: &ObjectRef, received: Moment) {
        let references: Vec<SessionReference> = self.references_to(session).collect();
        self.mark_missing(references, received);
    }

    /// Forgets a missing session that no lock names any more.
    pub(super) fn forget_missing(&mut self, session: &ObjectRef) {
        let first = SessionReference {
            session: session.clone(),
            pod: "".into(),
            pod_uid: "".into(),
        };
        let references = self.missing.range(first..).map(|(reference, _)| reference);
        let references = references.take_while(|reference| reference.session == *session);
        for reference in references.cloned().collect::<Vec<_>>() {
            self.missing.remove(&reference);
        }
    }

    fn is_foreign_reference(&self, reference: &SessionReference) -> bool {
        let found = self.sessions.get(&reference.session);
        found.is_some_and(|found| SessionReference::own(&found.session) != *reference)
    }

    fn mark_missing(&mut self, references: Vec<SessionReference>, received: Moment) {
        for reference in references {
            let before = self.missing.get(&reference).copied();
            let observed = Observed::join(before, Sight::Missing, received);
            self.missing.insert(reference, observed);
        }
    }
}
