//! Checks the pod of an election's leader, and requests the leader's resignation.

use std::sync::Arc;

use super::applied::Applied;
use super::fleet::read_lock;
use crate::operator::errors;
use crate::operator::observation::Observation;
use crate::operator::ports::Ports;
use crate::protocol::ids::GrantId;
use crate::protocol::lock::Lock;
use crate::store::StoreError;
use crate::store::cluster::{CandidatePod, Candidates, PodIdentity};
use crate::store::fleet::{Object, ObjectRef};

/// The observed leader of an election.
pub(super) struct Leader<'a> {
    pub(super) election: ObjectRef,
    pub(super) current: &'a Object<Lock>,
    pub(super) grant: GrantId,
    pub(super) pod: &'a PodIdentity,
}

/// Checks the leader. Other candidates are checked only if the leader may have to resign. The
/// request is written only after a check that confirms both, in the same action: a retry checks
/// again.
pub(super) async fn check(
    ports: &Ports,
    leader: Leader<'_>,
    others: &[PodIdentity],
    unready_since: Option<Arc<str>>,
) -> Applied {
    let found = read_pods(&*ports.candidates, &leader, others, unready_since.is_some()).await;
    let (pod, is_other_ready) = match found {
        Ok(found) => found,
        Err(error) => return Applied::failed(error),
    };
    let since = pod.as_ref().filter(|pod| pod.elects_always);
    let since = since.and_then(|pod| pod.unready_since.clone());
    if let Some(since) = since.filter(|since| Some(since) == unready_since.as_ref())
        && is_other_ready
    {
        return request_resignation(ports, &leader, &since).await;
    }
    Applied::done(Observation::Leader {
        election: leader.election,
        grant: leader.grant,
        pod,
    })
}

/// Reads the leader's pod, and whether another candidate's pod is Ready. The leader's pod is read
/// last, because it may have become Ready meanwhile.
async fn read_pods(
    candidates: &dyn Candidates,
    leader: &Leader<'_>,
    others: &[PodIdentity],
    may_request: bool,
) -> Result<(Option<CandidatePod>, bool), StoreError> {
    let name = &leader.election.name;
    let is_other_ready = may_request && is_any_ready(candidates, others, name).await?;
    Ok((candidates.pod(leader.pod, name).await?, is_other_ready))
}

async fn is_any_ready(
    candidates: &dyn Candidates,
    others: &[PodIdentity],
    election: &str,
) -> Result<bool, StoreError> {
    for other in others {
        let found = match candidates.pod(other, election).await {
            // An unreadable pod must not keep the others from being checked.
            Err(StoreError::Unreadable(_)) => None,
            found => found?,
        };
        if found.as_ref().is_some_and(CandidatePod::is_ready) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Closes the race with the end of that grant: only this version of the lock is written.
async fn request_resignation(ports: &Ports, leader: &Leader<'_>, since: &str) -> Applied {
    let (current, pod) = (leader.current, &leader.pod.object_ref.name);
    let reason = format!("pod {pod} is not Ready since {since}, and another candidate's pod is");
    let requested = ports
        .candidates
        .request_resignation(current, &leader.grant, &reason);
    let reread = read_lock(&*ports.fleet, &current.object_ref);
    match requested.await {
        Ok(()) => {
            tracing::warn!(election = %leader.election, reason, "asked leader to resign");
            Applied::read(reread.await)
        }
        Err(error) => {
            let advice = errors::advice(&error, errors::LABEL_RIGHTS);
            let applied = Applied::written(Err(error), reread).await;
            Applied {
                advice: advice.or(applied.advice),
                ..applied
            }
        }
    }
}
