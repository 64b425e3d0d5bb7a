//! Moves the lead of an election away from a pod that is not Ready, if the pod runs with
//! `elect-always`. Such a pod leads even if its app never polls, so polling does not show that the
//! app works.
//!
//! Pure. The pod is checked at intervals. If two checks find it not Ready since the same time in
//! its object, it was not Ready in between; no clocks are compared. If another candidate's pod is
//! Ready, the second check requests the leader's resignation, as a user would.

use std::sync::Arc;

use super::label::pod_identity;
use crate::operator::action::{Action, Plan};
use crate::operator::rules::Rules;
use crate::operator::view::{LeaderCheck, Readiness, View};
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::time::Moment;
use crate::store::fleet::{Object, ObjectRef};

/// Plans the check of an election's leader.
pub(super) fn plan(view: &View, rules: &Rules, election: &ObjectRef, now: Moment) -> Plan {
    let elections = view.elections();
    let lock = elections
        .lock_of(election)
        .and_then(|object_ref| view.lock(object_ref));
    let lock = lock.filter(|_| rules.leader_labels);
    let Some(lock) = lock.and_then(|seen| seen.lock.as_ref()) else {
        return Plan::default();
    };
    let value = &lock.stored.value;
    let Some(grant) = &value.grant else {
        return Plan::default();
    };
    let request = value.settings.release_request.as_ref();
    let is_requested = request.is_some_and(|request| request.names(&grant.id));
    // Each change of the lock leads to another plan.
    if value.waiters.is_empty() || is_requested {
        return Plan::default();
    }
    let before = elections.get(election);
    let before = before.and_then(|known| known.last_check.as_ref());
    let before = before.filter(|before| before.grant == grant.id);
    let due = match before {
        None => now,
        Some(before) if before.readiness == Readiness::Exempt => return Plan::default(),
        Some(before) => before.at.after(rules.unready_leader),
    };
    if now < due {
        return Plan::requeue_at(due);
    }
    check(lock, grant, election, before).map_or_else(Plan::default, Plan::act)
}

/// Returns the check to perform; `None` if the leader is not in a pod.
fn check(
    lock: &Arc<Object<Lock>>,
    grant: &Grant,
    election: &ObjectRef,
    before: Option<&LeaderCheck>,
) -> Option<Action> {
    let object_ref = &lock.object_ref;
    let waiters = lock.stored.value.waiters.entries().iter();
    let others = waiters.filter_map(|waiter| pod_identity(object_ref, &waiter.claimant.pod));
    Some(Action::CheckLeader {
        election: election.clone(),
        current: lock.clone(),
        grant: grant.id.clone(),
        pod: pod_identity(object_ref, &grant.holder.pod)?,
        others: others.collect(),
        unready_since: match before.map(|before| &before.readiness) {
            Some(Readiness::Unready(since)) => Some(since.clone()),
            _ => None,
        },
    })
}

#[cfg(test)]
mod tests;
