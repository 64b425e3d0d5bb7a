//! Writes the bindings of the sidecar's role. After an unknown outcome it re-reads the binding.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::store::StoreError;
use crate::store::cluster::PodLabels;
use crate::store::fleet::{Object, ObjectRef};
use crate::store::namespaces::{Binding, Namespaces, Subject};

use super::{Applied, Observation, needs_reread};
use crate::operator::errors;

/// The label that the injection sets on each pod with a sidecar.
const INJECTED: &str = "leasehold.dev/injected";

pub(super) async fn create(
    namespaces: &dyn Namespaces,
    namespace: &Arc<str>,
    subjects: &BTreeSet<Subject>,
) -> Applied {
    let created = namespaces.create_binding(namespace, subjects).await;
    let observation = created.map(|created| Observation::Binding(Box::new(created)));
    // Only the adapter knows the name. A re-read needs the namespace alone.
    let object_ref = ObjectRef {
        namespace: namespace.clone(),
        name: "".into(),
    };
    done(namespaces, &object_ref, observation).await
}

/// Closes the race with another writer: of two writes on this version one wins.
pub(super) async fn update(
    namespaces: &dyn Namespaces,
    current: &Object<Binding>,
    subjects: &BTreeSet<Subject>,
) -> Applied {
    let updated = namespaces.update_binding(current, subjects).await;
    let observation = updated.map(|updated| Observation::Binding(Box::new(updated)));
    done(namespaces, &current.object_ref, observation).await
}

/// A pod keeps the label for its whole life, regardless of changes to its namespace's label.
pub(super) async fn find_sidecars(labels: &dyn PodLabels, namespace: Arc<str>) -> Applied {
    match labels.list_pods(&namespace, INJECTED).await {
        Ok(pods) => Applied::done(Observation::Sidecars(namespace, !pods.is_empty())),
        Err(error) => Applied::failed(error),
    }
}

/// Closes the race with another writer that edits or recreates it: only this version is deleted.
pub(super) async fn delete(namespaces: &dyn Namespaces, current: &Object<Binding>) -> Applied {
    let deleted = namespaces.delete_binding(current).await;
    let observation = deleted.map(|()| Observation::NoBinding(current.object_ref.clone()));
    done(namespaces, &current.object_ref, observation).await
}

async fn done(
    namespaces: &dyn Namespaces,
    object_ref: &ObjectRef,
    written: Result<Observation, StoreError>,
) -> Applied {
    let applied = match written {
        Ok(observation) => return Applied::done(observation),
        Err(error) if needs_reread(&error) => {
            Applied::after_reread(reread(namespaces, object_ref).await)
        }
        Err(error) => Applied::failed(error),
    };
    Applied {
        advice: applied.error.as_ref().and_then(errors::binding_advice),
        ..applied
    }
}

async fn reread(
    namespaces: &dyn Namespaces,
    object_ref: &ObjectRef,
) -> Result<Observation, StoreError> {
    let found = namespaces.binding(&object_ref.namespace).await?;
    Ok(found.map_or_else(
        || Observation::NoBinding(object_ref.clone()),
        |found| Observation::Binding(Box::new(found)),
    ))
}
