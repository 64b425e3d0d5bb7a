//! Reads the pods that request a sidecar. Only the needed fields are read.

use serde_json::Value;

use super::{is_deleted, version_of};
use crate::store::namespaces::UninjectedPod;
use crate::store::{Original, StoreError, Stored};

/// Selects the pods that request a sidecar by their label and are not marked as injected.
pub const SELECTOR: &str = "leasehold.dev/inject=true,leasehold.dev/injected!=true";
/// The name of the sidecar's container.
const SIDECAR: &str = "leasehold";
/// The annotation that a kubelet sets on the mirror of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Reads a pod.
///
/// # Errors
/// `Unreadable` if its version is not an integer.
pub fn read(object: &Value) -> Result<Stored<UninjectedPod>, StoreError> {
    let spec = &object["spec"];
    let containers = [&spec["initContainers"], &spec["containers"]];
    let mut containers = containers.into_iter().filter_map(Value::as_array).flatten();
    let phase = object["status"]["phase"].as_str();
    let is_ended = matches!(phase, Some("Succeeded" | "Failed"));
    Ok(Stored {
        value: UninjectedPod {
            has_sidecar: containers.any(|container| container["name"] == SIDECAR),
            is_mirror: !object["metadata"]["annotations"][MIRROR].is_null(),
            has_ended: is_ended || is_deleted(object),
        },
        version: version_of(object)?,
        original: Original::new(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pod_is_read_for_sidecar_mirror_annotation_and_end() {
        let none = UninjectedPod::default();
        let with = UninjectedPod {
            has_sidecar: true,
            ..none
        };
        let over = UninjectedPod {
            has_ended: true,
            ..none
        };
        let mirror = UninjectedPod {
            is_mirror: true,
            ..none
        };
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (mut object, expected) in [
            (
                json!({"metadata": {}, "spec": {"containers": [{"name": "app"}]}}),
                none,
            ),
            (
                json!({"spec": {"initContainers": [{"name": "leasehold"}]}}),
                with,
            ),
            (
                json!({"spec": {"containers": [{"name": "leasehold"}]}}),
                with,
            ),
            (json!({"status": {"phase": "Running"}}), none),
            (json!({"status": {"phase": "Succeeded"}}), over),
            (json!({"metadata": deleted}), over),
            (json!({"metadata": {"annotations": {MIRROR: "x"}}}), mirror),
        ] {
            object["metadata"]["resourceVersion"] = "7".into();
            assert_eq!(read(&object).unwrap().value, expected, "{object}");
        }
    }
}
