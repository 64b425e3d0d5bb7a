//! The two steps of moving the label of an election's leader: remove it from all other pods, then
//! add it to the leader's pod. They are two actions, so that new observations of the lock count in
//! between.

use super::applied::Applied;
use crate::operator::errors;
use crate::operator::observation::Observation;
use crate::operator::plan::label;
use crate::protocol::ids::GrantId;
use crate::store::StoreError;
use crate::store::cluster::{PodIdentity, PodLabels};
use crate::store::fleet::ObjectRef;

/// Removes the label from all pods but `keep`. Stops at the first failure.
pub(super) async fn remove(
    labels: &dyn PodLabels,
    election: ObjectRef,
    grant: Option<GrantId>,
    keep: Option<PodIdentity>,
) -> Applied {
    let removed = remove_from_others(labels, &election, keep.as_ref()).await;
    done(election.clone(), removed, |is_labelled| {
        Observation::LabelRemoved {
            election,
            grant,
            is_labelled,
        }
    })
}

/// Adds the label to the leader's pod.
pub(super) async fn add(
    labels: &dyn PodLabels,
    election: ObjectRef,
    grant: GrantId,
    pod: &PodIdentity,
) -> Applied {
    let added = ignore_not_found(labels.add(pod, &label::key(&election)).await);
    let added = added.map_err(Failed::on_patch);
    done(election.clone(), added, |()| Observation::LabelAdded {
        election,
        grant,
    })
}

/// Returns whether `keep` has the label.
async fn remove_from_others(
    labels: &dyn PodLabels,
    election: &ObjectRef,
    keep: Option<&PodIdentity>,
) -> Result<bool, Failed> {
    let key = label::key(election);
    let mut is_labelled = false;
    let labelled = labels.list_pods(&election.namespace, &key).await;
    for pod in labelled.map_err(Failed::on_list)? {
        if Some(&pod) == keep {
            is_labelled = true;
        } else {
            ignore_not_found(labels.remove(&pod, &key).await).map_err(Failed::on_patch)?;
        }
    }
    Ok(is_labelled)
}

/// An error and what to do about it: the permission to patch pods is not granted by default.
struct Failed {
    error: StoreError,
    advice: Option<&'static str>,
}

impl Failed {
    fn on_list(error: StoreError) -> Self {
        let advice = errors::advice(&error, errors::RIGHTS);
        Self { error, advice }
    }

    fn on_patch(error: StoreError) -> Self {
        let advice = errors::advice(&error, errors::LABEL_RIGHTS);
        Self { error, advice }
    }
}

/// A pod that no longer exists has no label.
fn ignore_not_found(written: Result<(), StoreError>) -> Result<(), StoreError> {
    match written {
        Err(StoreError::NotFound(_)) => Ok(()),
        other => other,
    }
}

/// After any failure, the next plan starts again by listing the labelled pods.
fn done<T>(
    election: ObjectRef,
    result: Result<T, Failed>,
    observation: impl FnOnce(T) -> Observation,
) -> Applied {
    match result {
        Ok(found) => Applied::done(observation(found)),
        Err(Failed { error, advice }) => Applied {
            observation: Some(Observation::LabelUnknown(election)),
            advice,
            ..Applied::failed(error)
        },
    }
}

#[cfg(test)]
mod tests;
