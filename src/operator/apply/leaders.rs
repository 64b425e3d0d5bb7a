//! Looks at the pod that leads an election, and at others that would.

use crate::protocol::ids::GrantId;
use crate::store::StoreError;
use crate::store::cluster::{CandidatePod, Candidates, LabelledPod};
use crate::store::fleet::Place;

use super::{Applied, Shown};

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
