//! The label of the pod that leads an election, for Services that select it: which locks decide each
//! election, whose pod was seen to have the label, and what is to be done about it.
//!
//! It is taken from all others first, and only when that was seen to have worked is it given, in a
//! second step that is decided on what is known by then. It is a convenience for routing and no
//! fence: a pod may have it for a moment longer than the lead.
//!
//! The pods that have it are listed consistently when the grant changes, when a replica becomes the active
//! one, and after a failure; in the last two cases once more when no earlier write can land any longer. So a
//! change of leaders costs one listing and two patches, and nothing while the leader stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::election::ElectionName;
use crate::protocol::ids::{GrantId, Resource};
use crate::protocol::session::PodRef;
use crate::protocol::time::Moment;
use crate::store::cluster::PodIdentity;
use crate::store::fleet::ObjectRef;

use super::plan::{Action, Rules, Step};
use super::unready::LeaderCheck;
use super::view::View;

/// What the label's name begins with; the election's follows.
const PREFIX: &str = "leasehold.dev/leader-";
/// How long a write that was sent before may take to land: an API server gives a request a minute.
const LATE: Duration = Duration::from_secs(65);

/// The elections that there are, by namespace and name.
#[derive(Debug, Default)]
pub struct Elections(BTreeMap<ObjectRef, Election>);

#[derive(Debug, Default)]
struct Election {
    /// The locks that decide it: never more than one, which has the name of its resource.
    locks: BTreeSet<ObjectRef>,
    /// What the pods looked like when they were last looked at; none before, and after a write
    /// that failed or of which nothing is known.
    seen: Option<Labelled>,
    /// When to look once more, because a write of a former active replica, or one that was given
    /// up, may land until then.
    again: Option<Moment>,
    /// The last check of the leader's pod.
    checked: Option<LeaderCheck>,
}

/// Who has the label, once the others have lost it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Labelled {
    /// The grant for which they did; none while nobody leads.
    grant: Option<GrantId>,
    /// Whether that one's pod has it.
    is_given: bool,
}

/// The name of the label.
#[must_use]
pub fn key(election: &ObjectRef) -> String {
    format!("{PREFIX}{}", election.name)
}

/// The election that the lock of a resource decides, if it decides one.
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
    /// All of them.
    pub fn places(&self) -> impl Iterator<Item = &ObjectRef> {
        self.0.keys()
    }

    /// There is a lock that decides an election.
    pub(super) fn note_lock(&mut self, election: ObjectRef, lock: ObjectRef) {
        self.0.entry(election).or_default().locks.insert(lock);
    }

    /// That lock is not there any more. Its pod may still have the label.
    pub(super) fn note_no_lock(&mut self, election: &ObjectRef, lock: &ObjectRef) {
        if let Some(known) = self.0.get_mut(election) {
            known.locks.remove(lock);
        }
    }

    /// Nobody but this grant's pod has the label, and whether that one has.
    pub(super) fn note_taken(
        &mut self,
        election: &ObjectRef,
        grant: Option<GrantId>,
        is_given: bool,
        now: Moment,
    ) {
        let Some(known) = self.0.get_mut(election) else {
            return;
        };
        known.again = match known.seen {
            None => Some(now.after(LATE)),
            Some(_) => known.again.filter(|at| *at > now),
        };
        known.seen = Some(Labelled { grant, is_given });
        let is_over = known.locks.is_empty() && known.again.is_none();
        if is_over {
            self.0.remove(election);
        }
    }

    /// This grant's pod was given the label, or is gone.
    pub(super) fn note_given(&mut self, election: &ObjectRef, grant: &GrantId) {
        let known = self.0.get_mut(election);
        if let Some(seen) = known.and_then(|known| known.seen.as_mut())
            && seen.grant.as_ref() == Some(grant)
        {
            seen.is_given = true;
        }
    }

    /// Nothing is known of who has the label.
    pub(super) fn forget(&mut self, election: &ObjectRef) {
        if let Some(known) = self.0.get_mut(election) {
            known.seen = None;
        }
    }

    /// Nothing is known of who has any label: another replica wrote them until now.
    pub(super) fn forget_all(&mut self) {
        for known in self.0.values_mut() {
            known.seen = None;
            known.checked = None;
        }
    }

    /// The one lock that decides an election. Where several say that they do, none does.
    pub(super) fn lock_of(&self, election: &ObjectRef) -> Option<&ObjectRef> {
        let mut locks = self.0.get(election)?.locks.iter();
        locks.next().filter(|_| locks.next().is_none())
    }

    /// The last check of the pod of an election's leader.
    pub(super) fn checked(&self, election: &ObjectRef) -> Option<&LeaderCheck> {
        self.0.get(election)?.checked.as_ref()
    }

    /// Records a check of the pod of an election's leader.
    pub(super) fn note_leader(&mut self, election: &ObjectRef, check: LeaderCheck) {
        if let Some(known) = self.0.get_mut(election) {
            known.checked = Some(check);
        }
    }
}

/// What is to be done about the label of an election.
pub(super) fn step(view: &View, rules: &Rules, election: &ObjectRef, now: Moment) -> Step {
    let Some(known) = view.elections().0.get(election) else {
        return Step::default();
    };
    if !rules.leader_labels {
        return Step::default();
    }
    let leader = leader(view, election);
    let grant = leader.as_ref().map(|(grant, _)| grant.clone());
    let pod = leader.as_ref().and_then(|(_, pod)| pod.clone());
    let seen = known.seen.as_ref().filter(|seen| seen.grant == grant);
    let is_due = known.again.is_some_and(|at| at <= now);
    match (seen, leader) {
        (Some(seen), Some((grant, Some(pod)))) if !seen.is_given => Step::act(Action::GiveLabel {
            election: election.clone(),
            grant,
            pod,
        }),
        (Some(_), _) if !is_due => known.again.map_or_else(Step::default, Step::at),
        _ => Step::act(Action::TakeLabel {
            election: election.clone(),
            grant,
            keep: pod,
        }),
    }
}

/// The grant that leads, and its pod if it has one.
fn leader(view: &View, election: &ObjectRef) -> Option<(GrantId, Option<PodIdentity>)> {
    let object_ref = view.elections().lock_of(election)?;
    let grant = view.lock(object_ref)?.grant()?;
    Some((grant.id.clone(), labelled(object_ref, &grant.holder.pod)))
}

/// The pod that a lock names, if it is in the cluster.
pub(super) fn labelled(lock: &ObjectRef, pod: &PodRef) -> Option<PodIdentity> {
    let labelled = PodIdentity {
        object_ref: ObjectRef {
            namespace: lock.namespace.clone(),
            name: pod.name.clone(),
        },
        uid: pod.uid.clone(),
    };
    let is_in_cluster = !pod.uid.is_empty();
    is_in_cluster.then_some(labelled)
}

#[cfg(test)]
pub(super) mod tests;
