//! The writes to the bindings of the sidecar's role. What may have happened is looked at first.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::store::StoreError;
use crate::store::cluster::PodLabels;
use crate::store::fleet::{Object, ObjectRef};
use crate::store::namespaces::{Binding, Namespaces, Subject};

use super::{Applied, Shown, needs_a_look};
use crate::operator::trouble;

/// Injection puts it on each pod that it gives the sidecar.
const INJECTED: &str = "leasehold.dev/injected";

pub(super) async fn create(
    namespaces: &dyn Namespaces,
    namespace: &Arc<str>,
    subjects: &BTreeSet<Subject>,
) -> Applied {
    let created = namespaces.create_binding(namespace, subjects).await;
    let shown = created.map(|created| Shown::Binding(Box::new(created)));
    // One of its name has no place to name, as long as it was not seen.
    let object_ref = ObjectRef {
        namespace: namespace.clone(),
        name: "".into(),
    };
    done(namespaces, &object_ref, shown).await
}

/// Closes the race with whoever edits it just now: both write on this version, one wins.
pub(super) async fn update(
    namespaces: &dyn Namespaces,
    current: &Object<Binding>,
    subjects: &BTreeSet<Subject>,
) -> Applied {
    let updated = namespaces.update_binding(current, subjects).await;
    let shown = updated.map(|updated| Shown::Binding(Box::new(updated)));
    done(namespaces, &current.object_ref, shown).await
}

/// A pod has the label for as long as it is there, whatever the labels of its namespace.
pub(super) async fn look_for_sidecars(labels: &dyn PodLabels, namespace: Arc<str>) -> Applied {
    match labels.list_pods(&namespace, INJECTED).await {
        Ok(pods) => Applied::done(Shown::Sidecars(namespace, !pods.is_empty())),
        Err(error) => Applied::failed(error),
    }
}

/// Closes the race with whoever makes it anew or edits it: it is deleted at this version only.
pub(super) async fn delete(namespaces: &dyn Namespaces, current: &Object<Binding>) -> Applied {
    let deleted = namespaces.delete_binding(current).await;
    let shown = deleted.map(|()| Shown::NoBinding(current.object_ref.clone()));
    done(namespaces, &current.object_ref, shown).await
}

async fn done(
    namespaces: &dyn Namespaces,
    object_ref: &ObjectRef,
    written: Result<Shown, StoreError>,
) -> Applied {
    let applied = match written {
        Ok(shown) => return Applied::done(shown),
        Err(error) if needs_a_look(&error) => {
            Applied::after_looking(look(namespaces, object_ref).await)
        }
        Err(error) => Applied::failed(error),
    };
    Applied {
        advice: applied.error.as_ref().and_then(trouble::binding_advice),
        ..applied
    }
}

async fn look(namespaces: &dyn Namespaces, object_ref: &ObjectRef) -> Result<Shown, StoreError> {
    let found = namespaces.binding(&object_ref.namespace).await?;
    Ok(found.map_or_else(
        || Shown::NoBinding(object_ref.clone()),
        |found| Shown::Binding(Box::new(found)),
    ))
}
