//! The two steps of moving the label of an election's leader: take it from all others, give it. They
//! are two actions, so that what is known of the lock counts again in between.

use crate::protocol::ids::GrantId;
use crate::store::StoreError;
use crate::store::cluster::{PodIdentity, PodLabels};
use crate::store::fleet::ObjectRef;

use super::{Applied, Shown};
use crate::operator::{label, trouble};

/// Takes it from all that have it but `keep`. It ends with the first failure.
pub(super) async fn take(
    labels: &dyn PodLabels,
    election: ObjectRef,
    grant: Option<GrantId>,
    keep: Option<PodIdentity>,
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
    election: ObjectRef,
    grant: GrantId,
    pod: &PodIdentity,
) -> Applied {
    let given = unless_gone(labels.add(pod, &label::key(&election)).await);
    let given = given.map_err(Failed::to_patch);
    done(election.clone(), given, |()| Shown::LabelGiven {
        election,
        grant,
    })
}

/// Whether the one that may keep it has it.
async fn take_from_others(
    labels: &dyn PodLabels,
    election: &ObjectRef,
    keep: Option<&PodIdentity>,
) -> Result<bool, Failed> {
    let key = label::key(election);
    let mut is_given = false;
    let having = labels.list_pods(&election.namespace, &key).await;
    for pod in having.map_err(Failed::to_look)? {
        if Some(&pod) == keep {
            is_given = true;
        } else {
            unless_gone(labels.remove(&pod, &key).await).map_err(Failed::to_patch)?;
        }
    }
    Ok(is_given)
}

/// What failed, and what to do if it was refused: the right to patch pods is not given by default.
struct Failed {
    error: StoreError,
    advice: Option<&'static str>,
}

impl Failed {
    fn to_look(error: StoreError) -> Self {
        let advice = trouble::advice(&error);
        Self { error, advice }
    }

    fn to_patch(error: StoreError) -> Self {
        let advice = trouble::label_advice(&error);
        Self { error, advice }
    }
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
    election: ObjectRef,
    result: Result<T, Failed>,
    shown: impl FnOnce(T) -> Shown,
) -> Applied {
    match result {
        Ok(found) => Applied::done(shown(found)),
        Err(Failed { error, advice }) => Applied {
            shown: Some(Shown::LabelUnclear(election)),
            advice,
            ..Applied::failed(error)
        },
    }
}

#[cfg(test)]
mod tests;
