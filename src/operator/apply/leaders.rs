//! Looks at the pod that leads an election, and at others that would; asks it to resign.

use crate::protocol::ids::GrantId;
use crate::protocol::lock::Lock;
use crate::store::StoreError;
use crate::store::cluster::{CandidatePod, Candidates, LabelledPod};
use crate::store::fleet::{Place, Placed};

use super::{Applied, Ports, Shown, look_at_lock, needs_a_look, trouble};

/// Closes the race with the end of that grant: the lock is written at this version only.
pub(super) async fn ask(
    ports: &Ports,
    election: Place,
    current: &Placed<Lock>,
    grant: GrantId,
    reason: &str,
) -> Applied {
    let asked = ports.candidates.ask_to_resign(current, &grant, reason);
    match asked.await {
        Ok(()) => Applied::done(Shown::LeaderAsked { election, grant }),
        Err(error) if needs_a_look(&error) => {
            Applied::after_looking(look_at_lock(&ports.fleet, &current.place).await)
        }
        Err(error) => Applied {
            advice: trouble::label_advice(&error),
            ..Applied::failed(error)
        },
    }
}

/// The others only where the leader's pod is one that may have to go.
pub(super) async fn look(
    candidates: &dyn Candidates,
    election: Place,
    grant: GrantId,
    pod: &LabelledPod,
    others: &[LabelledPod],
) -> Applied {
    match look_at(candidates, &election, pod, others).await {
        Ok((pod, has_heir)) => Applied::done(Shown::Leader {
            election,
            grant,
            pod,
            has_heir,
        }),
        Err(error) => Applied::failed(error),
    }
}

async fn look_at(
    candidates: &dyn Candidates,
    election: &Place,
    pod: &LabelledPod,
    others: &[LabelledPod],
) -> Result<(Option<CandidatePod>, bool), StoreError> {
    let name = &election.name;
    let leader = candidates.pod(pod, name).await?;
    let may_have_to_go = |pod: &CandidatePod| pod.runs_unasked && pod.unready_since.is_some();
    if !leader.as_ref().is_some_and(may_have_to_go) {
        return Ok((leader, false));
    }
    for other in others {
        let other = candidates.pod(other, name).await?;
        if other.is_some_and(|other| other.unready_since.is_none()) {
            return Ok((leader, true));
        }
    }
    Ok((leader, false))
}
