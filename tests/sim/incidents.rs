//! The records of revoked grants. The process that ends another pod's grant writes exactly one
//! incident, with the real cause, in the same write. No other write adds one. The audit log agrees
//! with each.

use std::collections::BTreeSet;

use leasehold::protocol::ids::GrantId;
use leasehold::protocol::incident::{INCIDENTS_MAX, Incident, IncidentKind};
use leasehold::protocol::lock::{Grant, Lock};
use serde_json::Value;

use crate::invariants::Verdict;

/// All incidents so far.
#[derive(Default)]
pub(crate) struct Incidents {
    /// The grants with the action that ended them. After a restore, another action may end one
    /// again.
    known: BTreeSet<(GrantId, &'static str)>,
    /// The grants with a line in the audit log.
    told: BTreeSet<GrantId>,
}

impl Incidents {
    /// Checks a written lock. `pod_ended` is true if the kubelet reported the end of the holder's
    /// pod.
    pub(crate) fn stored(
        &mut self,
        who: &str,
        before: &Lock,
        lock: &Lock,
        pod_ended: bool,
    ) -> Verdict {
        let ended = (before.grant.as_ref()).filter(|held| !lock.names_grant(&held.id));
        let new = new_in(before, lock).map_err(|what| format!("{}: {what}", lock.resource))?;
        let verdict = match (ended, new) {
            (None, None) => Ok(()),
            (None, Some(new)) => Err(format!("an incident {:?} without an end", new.kind)),
            // It released the lock, or the app of another lease of the grant did.
            (Some(ended), None) if *ended.holder.pod.name == *who => Ok(()),
            (Some(ended), None) => Err(format!("the end of {} is on no record", ended.id)),
            (Some(ended), Some(new)) => is_true(who, before, ended, new, pod_ended),
        };
        if let Some(new) = new {
            let known = new.grant.clone().map(|id| (id, action_of(new.kind)));
            self.known.extend(known);
        }
        verdict.map_err(|what| format!("{}: {what}", lock.resource))
    }

    /// Checks a line of the audit log.
    pub(crate) fn told(&mut self, line: &str) -> Verdict {
        let line: Value = serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))?;
        let Some(grant) = line["leaseId"].as_str().map(GrantId::from) else {
            return Ok(());
        };
        let mut known = self.known.iter();
        if !known.any(|(id, action)| *id == grant && line["action"] == *action) {
            return Err(format!("the audit log has what never was: {line}"));
        }
        self.told.insert(grant);
        Ok(())
    }

    /// Returns the first incident in these locks that the audit log lacks.
    pub(crate) fn unrecorded<'l>(
        &self,
        locks: impl Iterator<Item = &'l Lock>,
    ) -> Option<&'l Incident> {
        let mut all = locks.flat_map(|lock| &lock.incidents);
        all.find(|one| (one.grant.as_ref()).is_some_and(|grant| !self.told.contains(grant)))
    }
}

/// Returns the action in the audit log.
const fn action_of(kind: IncidentKind) -> &'static str {
    match kind {
        IncidentKind::Expired => "expire",
        IncidentKind::PodEnded => "reclaim",
        IncidentKind::ForceReleased => "force-release",
        IncidentKind::ReleasedOnRequest => "release-on-request",
    }
}

/// Checks that the incident names that grant and its real cause.
fn is_true(who: &str, before: &Lock, ended: &Grant, new: &Incident, pod_ended: bool) -> Verdict {
    let is_its = new.grant.as_ref() == Some(&ended.id)
        && new.token == before.token
        && new.pod == ended.holder.pod.name;
    let request = before.settings.release_request.as_ref();
    let is_asked = request.is_some_and(|request| {
        request.lease.starts_with(ended.id.as_str()) && request.actor == new.actor
    });
    let is_own = *ended.holder.pod.name == *who;
    let has_cause = match new.kind {
        // A pod's next session ends the grants of its previous one, too.
        IncidentKind::Expired => true,
        IncidentKind::PodEnded => pod_ended,
        IncidentKind::ForceReleased => is_asked && !is_own,
        IncidentKind::ReleasedOnRequest => is_asked && is_own,
    };
    if is_its && has_cause {
        return Ok(());
    }
    let ended = &ended.id;
    Err(format!(
        "the end of {ended} by {who} is recorded as {new:?}"
    ))
}

/// Returns the incident that a write appended to the previous ones.
fn new_in<'l>(before: &Lock, lock: &'l Lock) -> Result<Option<&'l Incident>, String> {
    if lock.incidents == before.incidents {
        return Ok(None);
    }
    let had = &before.incidents;
    let skip = (had.len() + 1).saturating_sub(INCIDENTS_MAX);
    match lock.incidents.split_last() {
        Some((new, kept)) if *kept == had[skip..] => Ok(Some(new)),
        _ => Err("its records were not only added to".to_owned()),
    }
}
