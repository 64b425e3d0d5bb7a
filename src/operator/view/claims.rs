//! Who claims to live and die with a session, and whether it is theirs.
//!
//! A session belongs to the pod in its spec. A pod that names another one's, as a lock's holder or a waiter, has
//! no session: else another pod's renewals would keep its locks for ever.

use std::sync::Arc;

use super::{KeptLock, View, session_place};
use crate::protocol::lock::Lock;
use crate::protocol::observed::{Observed, Sight};
use crate::protocol::session::{Claimant, Session};
use crate::protocol::time::Moment;
use crate::store::fleet::{Object, ObjectRef};

/// A pod that names a session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    session: ObjectRef,
    pod: Arc<str>,
    pod_uid: Arc<str>,
}

impl Claim {
    pub(super) fn of(namespace: &Arc<str>, claimant: &Claimant) -> Self {
        Self {
            session: session_place(namespace, claimant),
            pod: claimant.pod.name.clone(),
            pod_uid: claimant.pod.uid.clone(),
        }
    }

    /// That of a session's own pod.
    pub(super) fn own(session: &Object<Session>) -> Self {
        let pod = &session.stored.value.pod;
        Self {
            session: session.object_ref.clone(),
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
        }
    }
}

pub(super) fn claims_of(lock: &Object<Lock>) -> impl Iterator<Item = Claim> {
    let value = &lock.stored.value;
    let holder = value.grant.iter().map(|grant| &grant.holder);
    let waiters = value.waiters.entries().iter().map(|w| &w.claimant);
    let namespace = &lock.object_ref.namespace;
    let claimants = holder.chain(waiters);
    claimants.map(|claimant| Claim::of(namespace, claimant))
}

pub(super) fn sessions_of(lock: &Object<Lock>) -> impl Iterator<Item = ObjectRef> {
    claims_of(lock).map(|claim| claim.session)
}

impl View {
    /// Who names this session.
    fn claims_to(&self, session: &ObjectRef) -> impl Iterator<Item = Claim> {
        let locks = self.naming.locks_of(session);
        let locks = locks.filter_map(|object_ref| self.locks.get(object_ref)?.full());
        let claims = locks.flat_map(|seen| claims_of(&seen.lock));
        claims.filter(move |claim| claim.session == *session)
    }

    /// Whether a lock's holder or a waiter is of this session's pod and has it.
    #[must_use]
    pub fn is_claimed(&self, session: &Object<Session>) -> bool {
        let own = Claim::own(session);
        self.claims_to(&session.object_ref)
            .any(|claim| claim == own)
    }

    /// Who of a lock names a session that is another pod's is without one from now on.
    pub(super) fn miss_sessions_of_strangers_in(&mut self, lock: &ObjectRef, received: Moment) {
        let Some(seen) = self.locks.get(lock).and_then(KeptLock::full) else {
            return;
        };
        let strangers = claims_of(&seen.lock).filter(|claim| self.is_strangers(claim));
        let strangers: Vec<Claim> = strangers.collect();
        self.miss(strangers, received);
    }

    /// Who else names a session that was just seen for the first time is without one from now on.
    pub(super) fn miss_session_of_strangers(&mut self, session: &ObjectRef, received: Moment) {
        let claims = self.claims_to(session);
        let strangers = claims.filter(|claim| self.is_strangers(claim));
        let strangers: Vec<Claim> = strangers.collect();
        self.miss(strangers, received);
    }

    /// There is no such session.
    pub(super) fn miss_session(&mut self, session: &ObjectRef, received: Moment) {
        let claims: Vec<Claim> = self.claims_to(session).collect();
        self.miss(claims, received);
    }

    /// Nothing names this session any more.
    pub(super) fn forget_missing(&mut self, session: &ObjectRef) {
        let first = Claim {
            session: session.clone(),
            pod: "".into(),
            pod_uid: "".into(),
        };
        let claims = self.missing.range(first..).map(|(claim, _)| claim);
        let claims = claims.take_while(|claim| claim.session == *session);
        for claim in claims.cloned().collect::<Vec<_>>() {
            self.missing.remove(&claim);
        }
    }

    fn is_strangers(&self, claim: &Claim) -> bool {
        let found = self.sessions.get(&claim.session);
        found.is_some_and(|found| Claim::own(&found.session) != *claim)
    }

    fn miss(&mut self, claims: Vec<Claim>, received: Moment) {
        for claim in claims {
            let before = self.missing.get(&claim).copied();
            let observed = Observed::join(before, Sight::Missing, received);
            self.missing.insert(claim, observed);
        }
    }
}
