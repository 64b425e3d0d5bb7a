//! Writes the bindings of the sidecar's role. After an unknown outcome it re-reads the binding.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::applied::Applied;
use crate::operator::errors;
use crate::operator::observation::{Observation, event_of};
use crate::store::StoreError;
use crate::store::cluster::PodLabels;
use crate::store::fleet::{Object, ObjectRef};
use crate::store::namespaces::{Binding, Namespaces, Subject};

/// The label that the injection sets on each pod with a sidecar.
const INJECTED: &str = "leasehold.dev/injected";

pub(super) async fn create(
    namespaces: &dyn Namespaces,
    namespace: &Arc<str>,
    subjects: &BTreeSet<Subject>,
) -> Applied {
    // Only the adapter knows the name. A re-read needs the namespace alone.
    let object_ref = ObjectRef {
        namespace: namespace.clone(),
        name: "".into(),
    };
    let created = namespaces.create_binding(namespace, subjects).await;
    done(namespaces, &object_ref, created.map(Some)).await
}

/// Closes the race with another writer: of two writes on this version one wins.
pub(super) async fn update(
    namespaces: &dyn Namespaces,
    current: &Object<Binding>,
    subjects: &BTreeSet<Subject>,
) -> Applied {
    let updated = namespaces.update_binding(current, subjects).await;
    done(namespaces, &current.object_ref, updated.map(Some)).await
}

/// A pod keeps the label for its whole life, regardless of changes to its namespace's label.
pub(super) async fn find_sidecars(labels: &dyn PodLabels, namespace: Arc<str>) -> Applied {
    let pods = labels.list_pods(&namespace, INJECTED).await;
    Applied::read(pods.map(|pods| Observation::Sidecars(namespace, !pods.is_empty())))
}

/// Closes the race with another writer that edits or recreates it: only this version is deleted.
pub(super) async fn delete(namespaces: &dyn Namespaces, current: &Object<Binding>) -> Applied {
    let deleted = namespaces.delete_binding(current).await;
    done(namespaces, &current.object_ref, deleted.map(|()| None)).await
}

async fn done(
    namespaces: &dyn Namespaces,
    object_ref: &ObjectRef,
    written: Result<Option<Object<Binding>>, StoreError>,
) -> Applied {
    let observation = |binding| Observation::Binding(event_of(object_ref, binding));
    let reread = async {
        let binding = namespaces.binding(&object_ref.namespace).await?;
        Ok(observation(binding))
    };
    let applied = Applied::written(written.map(observation), reread).await;
    applied.with_rights(errors::BINDING_RIGHTS)
}
