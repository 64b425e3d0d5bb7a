//! The label of the pod that leads an election, for Services that select it.
//!
//! The label is first removed from all other pods. Only after that has succeeded, a second step
//! adds it, planned on the observations of that time. The label is for routing and is not a fence:
//! a pod may have it a moment longer than the lead.
//!
//! The labelled pods are listed consistently when the grant changes, when a replica becomes active,
//! and after a failure. In the last two cases they are listed once more when no earlier write can
//! land. So a change of leaders costs one list and two patches, and a stable leader costs nothing.

use crate::operator::action::{Action, Plan};
use crate::operator::rules::Rules;
use crate::operator::view::View;
use crate::protocol::ids::GrantId;
use crate::protocol::session::PodRef;
use crate::protocol::time::Moment;
use crate::store::cluster::PodIdentity;
use crate::store::fleet::ObjectRef;

/// The prefix of the label's name; the name of the election follows.
const PREFIX: &str = "leasehold.dev/leader-";

/// Returns the name of the label.
pub(in crate::operator) fn key(election: &ObjectRef) -> String {
    format!("{PREFIX}{}", election.name)
}

/// Plans the label of an election.
pub(super) fn plan(view: &View, rules: &Rules, election: &ObjectRef, now: Moment) -> Plan {
    let Some(known) = view.elections().get(election) else {
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
pub(in crate::operator) mod tests;
