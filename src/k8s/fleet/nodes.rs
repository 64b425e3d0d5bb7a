//! Reads from a node object whether it is out of service.
//!
//! Node objects are large (images, addresses, capacities), and there may be thousands. Only two
//! fields are decoded.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;

use super::pods::identity;
use crate::store::fleet::{NodeReport, OUT_OF_SERVICE_TAINT};

/// The needed fields of a node.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = Node)]
pub(super) struct PartialNode {
    #[serde(deserialize_with = "identity")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
}

/// Returns what the operator needs to know of a node.
pub(super) fn report(node: &PartialNode) -> NodeReport {
    let mut conditions = node.status.conditions.iter();
    NodeReport {
        name: node.metadata.name.as_deref().unwrap_or_default().into(),
        is_tainted: node
            .spec
            .taints
            .iter()
            .any(|taint| taint.key == OUT_OF_SERVICE_TAINT),
        // Without the condition a node is not Ready, as for Kubernetes.
        is_ready: conditions.any(|one| one.r#type == "Ready" && one.status == "True"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn report_has_the_taint_and_the_condition() {
        let taint =
            json!([{"key": OUT_OF_SERVICE_TAINT, "value": "nodeshutdown", "effect": "NoExecute"}]);
        let other = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
        let ready = |status| json!([{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": status}]);
        let table = [
            (
                json!({"spec": {"taints": taint}, "status": {"conditions": ready("Unknown")}}),
                true,
                false,
            ),
            (
                json!({"spec": {"taints": taint}, "status": {"conditions": ready("False")}}),
                true,
                false,
            ),
            (
                json!({"spec": {"taints": taint}, "status": {"conditions": ready("True")}}),
                true,
                true,
            ),
            (json!({"spec": {"taints": taint}}), true, false),
            (
                json!({"spec": {"taints": other}, "status": {"conditions": ready("True")}}),
                false,
                true,
            ),
            (json!({}), false, false),
        ];
        for (mut object, is_tainted, is_ready) in table {
            object["metadata"] = json!({"name": "n1", "resourceVersion": "7"});
            let node: PartialNode = serde_json::from_value(object.clone()).unwrap();
            let expected = NodeReport {
                name: "n1".into(),
                is_tainted,
                is_ready,
            };
            assert_eq!(report(&node), expected, "{object}");
        }
    }
}
