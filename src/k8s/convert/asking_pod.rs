//! What a pod says of the sidecar that it asks for. Only what is asked about is read.

use serde_json::Value;

use super::{is_deleted, version_of};
use crate::store::namespaces::AskingPod;
use crate::store::{Original, StoreError, Stored};

/// The pods that ask by their label, but for those that say that they were injected.
pub const SELECTOR: &str = "leasehold.dev/inject=true,leasehold.dev/injected!=true";
/// The name of the sidecar's container.
const SIDECAR: &str = "leasehold";
/// Set by a kubelet on the mirror of a pod that it runs from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Reads a pod.
///
/// # Errors
/// `Unreadable` when its version is no integer.
pub fn read(object: &Value) -> Result<Stored<AskingPod>, StoreError> {
    let spec = &object["spec"];
    let containers = [&spec["initContainers"], &spec["containers"]];
    let mut containers = containers.into_iter().filter_map(Value::as_array).flatten();
    let phase = object["status"]["phase"].as_str();
    let is_ended = matches!(phase, Some("Succeeded" | "Failed"));
    Ok(Stored {
        value: AskingPod {
            has_sidecar: containers.any(|container| container["name"] == SIDECAR),
            is_mirror: !object["metadata"]["annotations"][MIRROR].is_null(),
            is_over: is_ended || is_deleted(object),
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
        let none = AskingPod::default();
        let with = AskingPod {
            has_sidecar: true,
            ..none
        };
        let over = AskingPod {
            is_over: true,
            ..none
        };
        let mirror = AskingPod {
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
