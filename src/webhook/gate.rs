//! `gate-lock`: an app that starts only when its pod leads an election.
//!
//! The sidecar runs for the election from its start on and keeps the lead for as long as the pod
//! lives; an init container behind it waits until it leads. Nothing here takes the lead away: who
//! passed the gate and loses the lead later learns that from `GET /v1/elections/NAME`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::annotations::Asked;
use super::sidecar::{self, Chosen};
use crate::protocol::election::ElectionName;

/// The init container that waits.
pub(super) const CONTAINER: &str = "leasehold-gate";

/// Why this pod cannot have the gate that it asks for.
///
/// A rollout of a Deployment starts the new pod first and stops the old one when the new one is
/// ready; the new one waits for the lock that the old one has.
pub(super) fn refusal(metadata: &ObjectMeta, asked: &Asked) -> Option<String> {
    let gate = asked.gate.as_ref().filter(|_| !asked.gate_rollout)?;
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

/// The init container, to be right behind the sidecar.
pub(super) fn container(chosen: &Chosen<'_>, gate: &ElectionName) -> Value {
    let apps = sidecar::env_of_apps(chosen.reach);
    let mut env: Vec<_> = apps
        .into_iter()
        .map(|(name, value)| sidecar::set(name, &value))
        .collect();
    env.push(sidecar::set("LEASEHOLD_LOG_LEVEL", chosen.log_level));
    let mut container = json!({
        "name": CONTAINER,
        "image": chosen.image,
        "args": ["gate", gate.as_str()],
        "env": env,
        "securityContext": sidecar::security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    if chosen.reach.has_socket() {
        container["volumeMounts"] = json!([sidecar::socket_mount()]);
    }
    sidecar::set_image_and_resources(&mut container, chosen, &chosen.gate_resources);
    container
}
