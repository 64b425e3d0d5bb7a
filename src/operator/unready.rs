//! Moves the lead of an election away from a pod that runs for it whether its app asks or not, and
//! has not been Ready for long: only its readiness says that its app serves nothing.
//!
//! Pure. The pod is looked at twice, as far apart as it may be unready. It was unready for all of
//! that time where its object still says the same moment since when; no clocks are compared. It is
//! asked to resign as a person asks, and only while another candidate's pod is Ready.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::ids::GrantId;
use crate::protocol::lock::Grant;
use crate::protocol::time::Moment;
use crate::store::cluster::CandidatePod;
use crate::store::fleet::Place;

use super::label::labelled;
use super::plan::{Action, Rules, Step};
use super::view::{KeptLock, SeenLock, View};

/// How many candidates that wait are looked at.
const OTHERS: usize = 10;

/// The pod of a grant that leads, as it was seen last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Looked {
    grant: GrantId,
    at: Moment,
    leader: Leader,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Leader {
    /// It keeps the lead however it is: its app asks, or it was asked to resign.
    Settled,
    Ready,
    Unready {
        /// In the words of its object.
        since: Arc<str>,
        /// When it was first seen so.
        first: Moment,
        /// Whether the pod of another candidate is Ready.
        has_heir: bool,
    },
}

impl Looked {
    /// What a look at the pod showed; none where the pod is gone.
    pub(super) fn new(
        before: Option<&Self>,
        grant: GrantId,
        pod: Option<CandidatePod>,
        has_heir: bool,
        now: Moment,
    ) -> Self {
        let before = before.filter(|before| before.grant == grant);
        let leader = match pod {
            Some(pod) if !pod.runs_unasked => Leader::Settled,
            Some(CandidatePod {
                unready_since: Some(since),
                ..
            }) => {
                let first = match before.map(|before| &before.leader) {
                    Some(Leader::Unready {
                        since: s, first, ..
                    }) if *s == since => *first,
                    _ => now,
                };
                Leader::Unready {
                    since,
                    first,
                    has_heir,
                }
            }
            // What is gone gives the lead up with its session.
            Some(_) | None => Leader::Ready,
        };
        Self {
            grant,
            at: now,
            leader,
        }
    }

    /// This grant's holder was asked to resign.
    pub(super) const fn settled(grant: GrantId, now: Moment) -> Self {
        Self {
            grant,
            at: now,
            leader: Leader::Settled,
        }
    }
}

/// What is to be done about the pod that leads an election.
pub(super) fn step(view: &View, rules: &Rules, election: &Place, now: Moment) -> Step {
    if !rules.leader_labels {
        return Step::default();
    }
    let Some(seen) = view.elections().lock_of(election) else {
        return Step::default();
    };
    let Some(KeptLock::Full(seen)) = view.lock(seen) else {
        return Step::default();
    };
    let Some(grant) = &seen.lock.stored.value.grant else {
        return Step::default();
    };
    // Each change of the lock gives rise to another step.
    let nobody_waits = seen.lock.stored.value.waiters.is_empty();
    if nobody_waits || is_asked(seen, grant) {
        return Step::default();
    }
    let looked = view.elections().looked(election);
    let looked = looked.filter(|looked| looked.grant == grant.id);
    decide(seen, grant, election, looked, rules.unready_leader, now)
}

/// Whether somebody asked for the end of this grant already.
fn is_asked(seen: &SeenLock, grant: &Grant) -> bool {
    let request = seen.lock.stored.value.settings.release_request.as_ref();
    request.is_some_and(|request| request.names(&grant.id))
}

fn decide(
    seen: &SeenLock,
    grant: &Grant,
    election: &Place,
    looked: Option<&Looked>,
    bound: Duration,
    now: Moment,
) -> Step {
    let due = match looked.map(|looked| (&looked.leader, looked.at)) {
        None => now,
        Some((Leader::Settled, _)) => return Step::default(),
        Some((Leader::Unready { first, .. }, at)) if at < first.after(bound) => first.after(bound),
        Some((
            Leader::Unready {
                since,
                has_heir: true,
                ..
            },
            _,
        )) => return Step::act(ask(seen, grant, election, since)),
        Some((Leader::Ready | Leader::Unready { .. }, at)) => at.after(bound),
    };
    if now < due {
        return Step::at(due);
    }
    look(seen, grant, election).map_or_else(Step::default, Step::act)
}

fn ask(seen: &SeenLock, grant: &Grant, election: &Place, since: &str) -> Action {
    let pod = &grant.holder.pod.name;
    Action::AskLeader {
        election: election.clone(),
        current: seen.lock.clone(),
        grant: grant.id.clone(),
        reason: format!("pod {pod} is not Ready since {since}, and another candidate's pod is"),
    }
}

/// None where the leader is in no pod.
fn look(seen: &SeenLock, grant: &Grant, election: &Place) -> Option<Action> {
    let waiters = seen.lock.stored.value.waiters.entries();
    let others = waiters
        .iter()
        .filter_map(|waiter| labelled(&seen.lock.place, &waiter.claimant.pod));
    Some(Action::LookAtLeader {
        election: election.clone(),
        grant: grant.id.clone(),
        pod: labelled(&seen.lock.place, &grant.holder.pod)?,
        others: others.take(OTHERS).collect(),
    })
}

#[cfg(test)]
mod tests;
