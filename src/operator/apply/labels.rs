//! The two steps of moving the label of an election's leader: take it from all others, give it. They
//! are two actions, so that what is known of the lock counts again in between.

use crate::protocol::ids::GrantId;
use crate::store::StoreError;
use crate::store::cluster::{LabelledPod, PodLabels};
use crate::store::fleet::Place;

use super::{Applied, Shown};
use crate::operator::label;

/// Takes it from all that have it but `keep`. It ends with the first failure.
pub(super) async fn take(
    labels: &dyn PodLabels,
    election: Place,
    grant: Option<GrantId>,
    keep: Option<LabelledPod>,
) -> Applied {
    let taken = take_from_others(labels, &election, keep.as_ref()).await;
    done(election.clone(), taken, |is_given| Shown::LabelTaken {
        election,
        grant,
        is_given,
    })
}

/// Gives it to the pod that leads.
pub(super) async fn give(
    labels: &dyn PodLabels,
    election: Place,
    grant: GrantId,
    pod: &LabelledPod,
) -> Applied {
    let given = unless_gone(labels.give(pod, &label::key(&election)).await);
    done(election.clone(), given, |()| Shown::LabelGiven {
        election,
        grant,
    })
}

/// Whether the one that may keep it has it.
async fn take_from_others(
    labels: &dyn PodLabels,
    election: &Place,
    keep: Option<&LabelledPod>,
) -> Result<bool, StoreError> {
    let key = label::key(election);
    let mut is_given = false;
    for pod in labels.having(&election.namespace, &key).await? {
        if Some(&pod) == keep {
            is_given = true;
        } else {
            unless_gone(labels.take(&pod, &key).await)?;
        }
    }
    Ok(is_given)
}

/// A pod that is gone has no label any more, and needs none.
fn unless_gone(written: Result<(), StoreError>) -> Result<(), StoreError> {
    match written {
        Err(StoreError::NotFound(_)) => Ok(()),
        other => other,
    }
}

/// Whatever failed, it is begun anew by looking who has it.
fn done<T>(
    election: Place,
    result: Result<T, StoreError>,
    shown: impl FnOnce(T) -> Shown,
) -> Applied {
    match result {
        Ok(found) => Applied::done(shown(found)),
        Err(error) => Applied {
            shown: Some(Shown::LabelUnclear(election)),
            ..Applied::failed(error)
        },
    }
}

#[cfg(test)]
mod tests;
