//! `gate-lock`: an app that starts only when its pod leads an election.
//!
//! The sidecar runs for the election from its start and keeps the lead as long as the pod lives. An
//! init container behind it waits for the lead. Nothing here ends the lead: an app that loses it
//! later learns that from `GET /v1/elections/NAME`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::annotations::PodSettings;
use super::sidecar::{self, SidecarSettings};
use crate::protocol::election::ElectionName;

/// The init container that waits.
pub(super) const CONTAINER: &str = "leasehold-gate";

/// Returns why a pod cannot have the gate that it requests.
///
/// The rollout of a Deployment stops the old pod when the new one is ready. But the new one waits
/// for the lock of the old one.
pub(super) fn refusal(metadata: &ObjectMeta, settings: &PodSettings) -> Option<String> {
    let gate = settings.gate.as_ref().filter(|_| !settings.gate_rollout)?;
    let owners = metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    if !controllers.any(|owner| owner.kind == "ReplicaSet") {
        return None;
    }
    Some(format!(
        "annotation config.leasehold.dev/gate-lock in a pod of a Deployment: while it rolls out, the \
         new pod waits for {gate} until the old pod ends, and the old pod is ended when the new one is \
         ready, so neither happens. Set the Deployment's strategy to Recreate (or maxSurge to 0) and \
         write config.leasehold.dev/gate-rollout: accept, or use a Job or a StatefulSet with one \
         replica"
    ))
}

/// Returns the init container, which follows the sidecar.
pub(super) fn container(sidecar_settings: &SidecarSettings<'_>, gate: &ElectionName) -> Value {
    let mut container = json!({
        "name": CONTAINER,
        "image": sidecar_settings.image,
        "args": ["gate", gate.as_str()],
        "env": sidecar::env_of_helpers(sidecar_settings),
        "securityContext": sidecar::security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    if sidecar_settings.reach.has_socket() {
        container["volumeMounts"] = json!([sidecar::socket_mount()]);
    }
    sidecar::set_image_and_resources(
        &mut container,
        sidecar_settings,
        &sidecar_settings.helper_resources,
    );
    container
}
