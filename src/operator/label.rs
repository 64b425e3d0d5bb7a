//! The label of the pod that leads an election, for Services that select it. Has the lock of each
//! election and the pods that were observed with the label, and plans the next step.
//!
//! The label is first removed from all other pods. Only after that has succeeded, a second step
//! adds it, planned on the observations of that time. The label is for routing and is not a fence:
//! a pod may have it a moment longer than the lead.
//!
//! The labelled pods are listed consistently when the grant changes, when a replica becomes active,
//! and after a failure. In the last two cases they are listed once more when no earlier write can
//! land. So a change of leaders costs one list and two patches, and a stable leader costs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::election::ElectionName;
use crate::protocol::ids::{GrantId, Resource};
use crate::protocol::session::PodRef;
use crate::protocol::time::Moment;
use crate::store::cluster::PodIdentity;
use crate::store::fleet::ObjectRef;

use super::plan::{Action, Plan, Rules};
use super::unready_leader::LeaderCheck;
use super::view::View;

/// The prefix of the label's name; the name of the election follows.
const PREFIX: &str = "leasehold.dev/leader-";
/// How long an earlier write may take to land: an API server bounds a request to a minute.
const LATE_WRITE_WINDOW: Duration = Duration::from_secs(65);

/// The known elections, by namespace and name.
#[derive(Debug, Default)]
pub struct Elections(BTreeMap<ObjectRef, Election>);

#[derive(Debug, Default)]
struct Election {
    /// The locks that decide the election: at most one, whose object has the name of its resource.
    locks: BTreeSet<ObjectRef>,
    /// The labelled pods when they were last listed. `None` before, after a failed write and after
    /// an unknown outcome.
    seen: Option<LabelObservation>,
    /// When to list again, because a write of an earlier active replica, or one without an answer,
    /// may land until then.
    recheck_at: Option<Moment>,
    /// The last check of the leader's pod.
    last_check: Option<LeaderCheck>,
}

/// Which pod has the label, after it was removed from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelObservation {
    /// The grant whose pod may have it; `None` without a leader.
    grant: Option<GrantId>,
    /// Whether the pod of the grant has it.
    is_labelled: bool,
}

/// Returns the name of the label.
#[must_use]
pub fn key(election: &ObjectRef) -> String {
    format!("{PREFIX}{}", election.name)
}

/// Returns the election that the lock of a resource decides, if it is an election's lock.
#[must_use]
pub fn election_of(namespace: &Arc<str>, resource: &Resource) -> Option<ObjectRef> {
    let name = resource
        .as_str()
        .strip_prefix(crate::protocol::election::PREFIX)?;
    let name = ElectionName::parse(name).ok()?;
    Some(ObjectRef {
        namespace: namespace.clone(),
        name: name.as_str().into(),
    })
}

impl Elections {
    /// Returns all elections.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectRef> {
        self.0.keys()
    }

    /// Records a lock that decides an election.
    pub(super) fn add_lock(&mut self, election: ObjectRef, lock: ObjectRef) {
        self.0.entry(election).or_default().locks.insert(lock);
    }

    /// Removes a lock that no longer exists. Its pod may still have the label.
    pub(super) fn remove_lock(&mut self, election: &ObjectRef, lock: &ObjectRef) {
        if let Some(known) = self.0.get_mut(election) {
            known.locks.remove(lock);
        }
    }

    /// Records that no pod but that of this grant has the label, and whether that one has it.
    pub(super) fn record_removed(
        &mut self,
        election: &ObjectRef,
        grant: Option<GrantId>,
        is_labelled: bool,
        now: Moment,
    ) {
        let Some(known) = self.0.get_mut(election) else {
            return;
        };
        known.recheck_at = match known.seen {
            None => Some(now.after(LATE_WRITE_WINDOW)),
            Some(_) => known.recheck_at.filter(|at| *at > now),
        };
        known.seen = Some(LabelObservation { grant, is_labelled });
        let is_over = known.locks.is_empty() && known.recheck_at.is_none();
        if is_over {
            self.0.remove(election);
        }
    }

    /// Records that the pod of this grant has the label, or no longer exists.
    pub(super) fn record_added(&mut self, election: &ObjectRef, grant: &GrantId) {
        let known = self.0.get_mut(election);
        if let Some(seen) = known.and_then(|known| known.seen.as_mut())
            && seen.grant.as_ref() == Some(grant)
        {
            seen.is_labelled = true;
        }
    }

    /// Forgets which pods have the label of an election.
    pub(super) fn forget_pods(&mut self, election: &ObjectRef) {
        if let Some(known) = self.0.get_mut(election) {
            known.seen = None;
        }
    }

    /// Forgets which pods have labels: until now another replica wrote them.
    pub(super) fn forget_all(&mut self) {
        for known in self.0.values_mut() {
            known.seen = None;
            known.last_check = None;
        }
    }

    /// Returns the lock that decides an election; `None` if several locks claim to.
    pub(super) fn lock_of(&self, election: &ObjectRef) -> Option<&ObjectRef> {
        let mut locks = self.0.get(election)?.locks.iter();
        locks.next().filter(|_| locks.next().is_none())
    }

    /// Returns the last check of the pod of an election's leader.
    pub(super) fn last_check(&self, election: &ObjectRef) -> Option<&LeaderCheck> {
        self.0.get(election)?.last_check.as_ref()
    }

    /// Records a check of the pod of an election's leader.
    pub(super) fn record_check(&mut self, election: &ObjectRef, check: LeaderCheck) {
        if let Some(known) = self.0.get_mut(election) {
            known.last_check = Some(check);
        }
    }
}

/// Plans the label of an election.
pub(super) fn plan(view: &View, rules: &Rules, election: &ObjectRef, now: Moment) -> Plan {
    let Some(known) = view.elections().0.get(election) else {
        return Plan::default();
    };
    if !rules.leader_labels {
        return Plan::default();
    }
    let leader = leader(view, election);
    let grant = leader.as_ref().map(|(grant, _)| grant.clone());
    let pod = leader.as_ref().and_then(|(_, pod)| pod.clone());
    let seen = known.seen.as_ref().filter(|seen| seen.grant == grant);
    let is_due = known.recheck_at.is_some_and(|at| at <= now);
    match (seen, leader) {
        (Some(seen), Some((grant, Some(pod)))) if !seen.is_labelled => {
            Plan::act(Action::AddLabel {
                election: election.clone(),
                grant,
                pod,
            })
        }
        (Some(_), _) if !is_due => known
            .recheck_at
            .map_or_else(Plan::default, Plan::requeue_at),
        _ => Plan::act(Action::RemoveLabel {
            election: election.clone(),
            grant,
            keep: pod,
        }),
    }
}

/// Returns the leading grant, and its pod if it has one.
fn leader(view: &View, election: &ObjectRef) -> Option<(GrantId, Option<PodIdentity>)> {
    let object_ref = view.elections().lock_of(election)?;
    let grant = view.lock(object_ref)?.grant()?;
    Some((
        grant.id.clone(),
        pod_identity(object_ref, &grant.holder.pod),
    ))
}

/// Returns the pod of a claimant, if it is in the cluster.
pub(super) fn pod_identity(lock: &ObjectRef, pod: &PodRef) -> Option<PodIdentity> {
    let pod_identity = PodIdentity {
        object_ref: ObjectRef {
            namespace: lock.namespace.clone(),
            name: pod.name.clone(),
        },
        uid: pod.uid.clone(),
    };
    let is_in_cluster = !pod.uid.is_empty();
    is_in_cluster.then_some(pod_identity)
}

#[cfg(test)]
pub(super) mod tests;
