//! The known elections: the lock of each, the pods that were observed with its label, and the last
//! check of its leader's pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::operator::key::Key;
use crate::protocol::election::{ElectionName, PREFIX};
use crate::protocol::ids::GrantId;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::store::cluster::CandidatePod;
use crate::store::fleet::{Object, ObjectRef};

/// How long an earlier write may take to land: an API server bounds a request to a minute.
const LATE_WRITE_WINDOW: Duration = Duration::from_secs(65);

/// The known elections, by namespace and name.
#[derive(Debug, Default)]
pub(in crate::operator) struct Elections {
    known: BTreeMap<ObjectRef, Election>,
    /// The election that each lock decides, if any.
    by_lock: BTreeMap<ObjectRef, ObjectRef>,
}

#[derive(Debug, Default)]
pub(in crate::operator) struct Election {
    /// The locks that decide the election: at most one, whose object has the name of its resource.
    locks: BTreeSet<ObjectRef>,
    /// The labelled pods when they were last listed. `None` before, after a failed write and after
    /// an unknown outcome.
    pub(in crate::operator) seen: Option<LabelObservation>,
    /// When to list again, because a write of an earlier active replica, or one without an answer,
    /// may land until then.
    pub(in crate::operator) recheck_at: Option<Moment>,
    /// The last check of the leader's pod.
    pub(in crate::operator) last_check: Option<LeaderCheck>,
}

/// Which pod has the label, after it was removed from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) struct LabelObservation {
    /// The grant whose pod may have it; `None` without a leader.
    pub(in crate::operator) grant: Option<GrantId>,
    /// Whether the pod of the grant has it.
    pub(in crate::operator) is_labelled: bool,
}

/// The last check of a leader's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) struct LeaderCheck {
    pub(in crate::operator) grant: GrantId,
    pub(in crate::operator) at: Moment,
    pub(in crate::operator) readiness: Readiness,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) enum Readiness {
    /// The pod does not run with `elect-always`, so its readiness does not count.
    Exempt,
    Ready,
    /// Not Ready since this time, as its object has it.
    Unready(Arc<str>),
}

impl LeaderCheck {
    /// Creates a check. `pod` is `None` if the pod no longer exists: then its session ends, and the
    /// grant with it.
    pub(super) fn new(grant: GrantId, pod: Option<CandidatePod>, at: Moment) -> Self {
        let readiness = match pod {
            Some(pod) if !pod.elects_always => Readiness::Exempt,
            Some(pod) => pod
                .unready_since
                .map_or(Readiness::Ready, Readiness::Unready),
            None => Readiness::Ready,
        };
        Self {
            grant,
            at,
            readiness,
        }
    }
}

impl Elections {
    /// Returns all elections.
    pub(in crate::operator) fn keys(&self) -> impl Iterator<Item = &ObjectRef> {
        self.known.keys()
    }

    pub(in crate::operator) fn get(&self, election: &ObjectRef) -> Option<&Election> {
        self.known.get(election)
    }

    /// Returns the lock that decides an election; `None` if several locks claim to.
    pub(in crate::operator) fn lock_of(&self, election: &ObjectRef) -> Option<&ObjectRef> {
        let mut locks = self.known.get(election)?.locks.iter();
        locks.next().filter(|_| locks.next().is_none())
    }

    /// Records which election a lock decides now, if any. Returns what has to be planned. The pods
    /// of an election without a lock may still have the label.
    pub(super) fn set_election_of(
        &mut self,
        lock: &ObjectRef,
        election: Option<ObjectRef>,
    ) -> Vec<Key> {
        let mut changed = Vec::new();
        let before = self.by_lock.remove(lock);
        if let Some(before) = before.filter(|before| Some(before) != election.as_ref()) {
            if let Some(known) = self.known.get_mut(&before) {
                known.locks.remove(lock);
            }
            changed.push(Key::Label(before));
        }
        if let Some(election) = election {
            let known = self.known.entry(election.clone()).or_default();
            known.locks.insert(lock.clone());
            self.by_lock.insert(lock.clone(), election.clone());
            changed.extend([Key::Label(election.clone()), Key::Leader(election)]);
        }
        changed
    }

    /// Records that no pod but that of this grant has the label, and whether that one has it.
    pub(super) fn record_removed(
        &mut self,
        election: &ObjectRef,
        grant: Option<GrantId>,
        is_labelled: bool,
        now: Moment,
    ) {
        let Some(known) = self.known.get_mut(election) else {
            return;
        };
        known.recheck_at = match known.seen {
            None => Some(now.after(LATE_WRITE_WINDOW)),
            Some(_) => known.recheck_at.filter(|at| *at > now),
        };
        known.seen = Some(LabelObservation { grant, is_labelled });
        let is_over = known.locks.is_empty() && known.recheck_at.is_none();
        if is_over {
            self.known.remove(election);
        }
    }

    /// Records that the pod of this grant has the label, or no longer exists.
    pub(super) fn record_added(&mut self, election: &ObjectRef, grant: &GrantId) {
        let known = self.known.get_mut(election);
        if let Some(seen) = known.and_then(|known| known.seen.as_mut())
            && seen.grant.as_ref() == Some(grant)
        {
            seen.is_labelled = true;
        }
    }

    /// Records a check of the pod of an election's leader.
    pub(super) fn record_check(&mut self, election: &ObjectRef, check: LeaderCheck) {
        if let Some(known) = self.known.get_mut(election) {
            known.last_check = Some(check);
        }
    }

    /// Forgets which pods have the label of an election.
    pub(super) fn forget_pods(&mut self, election: &ObjectRef) {
        if let Some(known) = self.known.get_mut(election) {
            known.seen = None;
        }
    }

    /// Forgets which pods have labels: until now another replica wrote them.
    pub(super) fn forget_all(&mut self) {
        for known in self.known.values_mut() {
            known.seen = None;
            known.last_check = None;
        }
    }
}

/// Returns the election that a lock decides, if it is an election's lock.
pub(super) fn election_of(lock: &Object<Lock>) -> Option<ObjectRef> {
    // Candidates use the lock object with the name of its resource. Another object with that
    // resource decides no election.
    let resource = lock.stored.value.resource.as_str();
    let name = resource
        .strip_prefix(PREFIX)
        .filter(|_| !lock.is_misnamed)?;
    let name = ElectionName::parse(name).ok()?;
    Some(ObjectRef {
        namespace: lock.object_ref.namespace.clone(),
        name: name.as_str().into(),
    })
}
