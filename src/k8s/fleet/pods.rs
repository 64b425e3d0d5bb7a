//! What the kubelet reports of a pod, read from its object.
//!
//! Only what is asked for is decoded: a cluster keeps many pods that ended, and most have nothing
//! to do with us. What does not say clearly that a container ended counts as running, and an end
//! that somebody else than the kubelet may have written as presumed: either only costs time.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::feeds::place_of;
use crate::k8s::errors::in_short;
use crate::store::StoreError;
use crate::store::fleet::{ContainerReport, PodReport};

/// The condition of a pod that was ended by some decision about it or its node.
const DISRUPTION: &str = "DisruptionTarget";
/// Its reasons that do not come from the kubelet and say that the node may not have been asked:
/// the garbage collector of pods writes a terminal phase itself, and the taint manager gave the
/// node up. A preempted or evicted pod is ended by the kubelet, which reports it.
const PRESUMING: &[&str] = &["DeletionByPodGC", "DeletionByTaintManager"];
/// The reason that the node controller writes into the status of pods on a node that is gone.
const NODE_LOST: &str = "NodeLost";
/// The kubelet found no trace of the container, and says only that it is over.
const LOST_SIGHT: &str = "ContainerStatusUnknown";

/// The part of a pod that is looked at.
#[derive(Clone, Debug, Default, Deserialize, Resource)]
#[resource(inherit = Pod)]
pub(super) struct SeenPod {
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

/// Metadata without labels, annotations and who wrote what.
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
    let seen = Identity::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: seen.name,
        namespace: seen.namespace,
        uid: seen.uid,
        resource_version: seen.resource_version,
        deletion_timestamp: seen.deletion_timestamp,
        ..ObjectMeta::default()
    })
}

/// What an object of the API server says.
///
/// # Errors
/// `Unreadable` when it is no pod.
pub(super) fn report_of_object(object: Value) -> Result<PodReport, StoreError> {
    let seen: SeenPod = serde_json::from_value(object).map_err(|error| {
        StoreError::Unreadable(in_short(&format!("a pod that is none: {error}")))
    })?;
    Ok(report(&seen))
}

/// What the kubelet says, as far as it was the kubelet.
pub(super) fn report(pod: &SeenPod) -> PodReport {
    let SeenPod {
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
        object_ref: place_of(pod),
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

/// Whatever the condition's status is: a controller sets it to False where the deletion that was
/// announced did not come, and the phase that came with it stays.
fn is_presumed(status: &Status) -> bool {
    let announced = status.conditions.iter().any(|condition| {
        condition.r#type == DISRUPTION && PRESUMING.contains(&condition.reason.as_str())
    });
    announced || status.reason == NODE_LOST
}

/// A state that is not given is waiting, says the API.
fn container(container: &Container) -> ContainerReport {
    match &container.state.terminated {
        None => ContainerReport::Alive,
        Some(end) if end.reason == LOST_SIGHT => ContainerReport::Unknown,
        Some(_) => ContainerReport::Terminated,
    }
}

#[cfg(test)]
mod tests;
