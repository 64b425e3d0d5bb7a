//! Reads the kubelet's report from a pod object.
//!
//! Only the needed fields are decoded: a cluster keeps many ended pods, and most do not use
//! Leasehold. Without a clear report a container counts as running, and an end that another
//! component may have written as presumed: both only cost time.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::feeds::object_ref;
use crate::k8s::errors::one_line;
use crate::store::StoreError;
use crate::store::fleet::{ContainerReport, PodReport};

/// The condition of a pod that was ended by a decision about it or its node.
const DISRUPTION: &str = "DisruptionTarget";
/// Reasons that do not come from the kubelet and leave open whether the kubelet was asked. The pod
/// garbage collector writes a terminal phase itself, and the taint manager evicts pods of a node
/// that may be unreachable. A preempted or evicted pod is ended and reported by its kubelet.
const PRESUMING: &[&str] = &["DeletionByPodGC", "DeletionByTaintManager"];
/// The reason that the node controller writes into the status of pods on a lost node.
const NODE_LOST: &str = "NodeLost";
/// The kubelet found no trace of the container, and only reports that it has ended.
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// The needed fields of a pod.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub(super) struct PartialPod {
    #[serde(deserialize_with = "identity")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    containers: Vec<IgnoredAny>,
    init_containers: Vec<IgnoredAny>,
    ephemeral_containers: Vec<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    reason: String,
    conditions: Vec<Condition>,
    container_statuses: Vec<Container>,
    init_container_statuses: Vec<Container>,
    ephemeral_container_statuses: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    reason: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    state: State,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct State {
    terminated: Option<Terminated>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Terminated {
    reason: String,
}

/// Reads metadata without labels, annotations and managedFields.
pub(super) fn identity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Identity {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        deletion_timestamp: Option<Time>,
    }
    let partial = Identity::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: partial.name,
        namespace: partial.namespace,
        uid: partial.uid,
        resource_version: partial.resource_version,
        deletion_timestamp: partial.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

/// Reads the report from an object of the API server.
///
/// # Errors
/// `Unreadable` if it is not a pod.
pub(super) fn report_of_object(object: Value) -> Result<PodReport, StoreError> {
    let partial: PartialPod = serde_json::from_value(object).map_err(|error| {
        StoreError::Unreadable(one_line(&format!("a pod that is none: {error}")))
    })?;
    Ok(report(&partial))
}

/// Returns the kubelet's report.
pub(super) fn report(pod: &PartialPod) -> PodReport {
    let PartialPod {
        metadata,
        spec,
        status,
    } = pod;
    let statuses = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    PodReport {
        object_ref: object_ref(pod),
        uid: metadata.uid.as_deref().unwrap_or_default().into(),
        is_terminal: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
        is_deleted: metadata.deletion_timestamp.is_some(),
        is_presumed: is_presumed(status),
        declared: spec.containers.len()
            + spec.init_containers.len()
            + spec.ephemeral_containers.len(),
        containers: statuses.into_iter().flatten().map(container).collect(),
    }
}

/// The condition's status does not matter: a controller sets it to False if the announced deletion
/// did not happen, and the phase stays.
fn is_presumed(status: &Status) -> bool {
    let announced = status.conditions.iter().any(|condition| {
        condition.r#type == DISRUPTION && PRESUMING.contains(&condition.reason.as_str())
    });
    announced || status.reason == NODE_LOST
}

/// By the API an absent state means waiting.
fn container(container: &Container) -> ContainerReport {
    match &container.state.terminated {
        None => ContainerReport::Alive,
        Some(end) if end.reason == STATUS_UNKNOWN => ContainerReport::Unknown,
        Some(_) => ContainerReport::Terminated,
    }
}

#[cfg(test)]
mod tests;
