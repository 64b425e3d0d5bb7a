//! Moves the lead of an election away from a pod that is not Ready, if the pod runs for it with
//! `elect-always`: no question of its app shows then that the app serves.
//!
//! Pure. The pod is checked at intervals. If two checks in a row find it not Ready since the same moment, as its
//! object has it, it was not Ready in between; no clocks are compared. The second check asks the leader to
//! resign, as a person would, if another candidate's pod is Ready.

use std::sync::Arc;

use crate::protocol::ids::GrantId;
use crate::protocol::lock::Grant;
use crate::protocol::time::Moment;
use crate::store::cluster::CandidatePod;
use crate::store::fleet::ObjectRef;

use super::label::labelled;
use super::plan::{Action, Rules, Step};
use super::view::{KeptLock, SeenLock, View};

/// The last check of the pod of a grant that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaderCheck {
    grant: GrantId,
    at: Moment,
    found: Found,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    /// The pod does not run with `elect-always`, so that its readiness does not count.
    Exempt,
    Ready,
    /// With the moment since when, as its object has it.
    Unready(Arc<str>),
}

impl LeaderCheck {
    /// The pod is none where it is gone: then its session ends, and the grant with it.
    pub(super) fn new(grant: GrantId, pod: Option<CandidatePod>, at: Moment) -> Self {
        let found = match pod {
            Some(pod) if !pod.elects_always => Found::Exempt,
            Some(pod) => pod.unready_since.map_or(Found::Ready, Found::Unready),
            None => Found::Ready,
        };
        Self { grant, at, found }
    }
}

/// Decides about the pod that leads an election.
pub(super) fn step(view: &View, rules: &Rules, election: &ObjectRef, now: Moment) -> Step {
    let elections = view.elections();
    let lock = elections
        .lock_of(election)
        .and_then(|object_ref| view.lock(object_ref));
    let Some(KeptLock::Full(seen)) = lock.filter(|_| rules.leader_labels) else {
        return Step::default();
    };
    let value = &seen.lock.stored.value;
    let Some(grant) = &value.grant else {
        return Step::default();
    };
    // Each change of the lock leads to another step.
    if value.waiters.is_empty() || is_asked(seen, grant) {
        return Step::default();
    }
    let before = elections.checked(election);
    let before = before.filter(|before| before.grant == grant.id);
    let due = match before {
        None => now,
        Some(before) if before.found == Found::Exempt => return Step::default(),
        Some(before) => before.at.after(rules.unready_leader),
    };
    if now < due {
        return Step::at(due);
    }
    check(seen, grant, election, before).map_or_else(Step::default, Step::act)
}

/// Whether the end of this grant is requested already, by whomever.
fn is_asked(seen: &SeenLock, grant: &Grant) -> bool {
    let request = seen.lock.stored.value.settings.release_request.as_ref();
    request.is_some_and(|request| request.names(&grant.id))
}

/// None if the leader is not in a pod.
fn check(
    seen: &SeenLock,
    grant: &Grant,
    election: &ObjectRef,
    before: Option<&LeaderCheck>,
) -> Option<Action> {
    let lock = &seen.lock.object_ref;
    let waiters = seen.lock.stored.value.waiters.entries().iter();
    let others = waiters.filter_map(|waiter| labelled(lock, &waiter.claimant.pod));
    Some(Action::CheckLeader {
        election: election.clone(),
        current: seen.lock.clone(),
        grant: grant.id.clone(),
        pod: labelled(lock, &grant.holder.pod)?,
        others: others.collect(),
        unready_since: match before.map(|before| &before.found) {
            Some(Found::Unready(since)) => Some(since.clone()),
            _ => None,
        },
    })
}

#[cfg(test)]
mod tests;
