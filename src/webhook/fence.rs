//! `fence-port`: a reverse proxy in the pod that refuses stale writers, for an app that cannot compare fencing tokens.
//!
//! It is a native sidecar behind the sidecar, which verifies its tokens. Its state survives a restart of the
//! container. A new pod has a new state, and verifies each token again.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use super::annotations::PodSettings;
use super::obstacles;
use super::quantity::Quantity;
use super::sidecar::{self, SidecarSettings};
use crate::protocol::ids::Resource;

/// The container of the fence.
pub(super) const CONTAINER: &str = "leasehold-fence";
pub(super) const STATE_VOLUME: &str = "leasehold-fence-state";
const STATE_DIRECTORY: &str = "/var/run/leasehold-fence";
/// Room for the tokens of 100,000 locks with long names, while they are rewritten.
const STATE_LIMIT: &str = "256Mi";
/// Connections of clients at once.
const CONNECTIONS_MAX: u32 = 1_024;
/// Requests at once.
const REQUESTS_MAX: u32 = 512;
/// The smallest limit of memory. So many slow clients took 115 MiB, and there must be room for 100,000 tokens.
const MEMORY: &str = "256Mi";
/// The port for clients.
const PORT: u16 = 7375;
/// The port of health and metrics.
const ADMIN: u16 = 7376;

/// Returns why a pod cannot have the fence that it requests.
pub(super) fn refusal(
    spec: &PodSpec,
    settings: &PodSettings,
    sidecar_settings: &SidecarSettings<'_>,
) -> Option<String> {
    let app = settings.fence_port?;
    let why = |words: &str| {
        Some(format!(
            "annotation config.leasehold.dev/fence-port: {words}"
        ))
    };
    if spec.host_network == Some(true) {
        return why(
            "the pod uses the host network, where the app can be reached beside the fence; use the pod network",
        );
    }
    let ports = sidecar_settings.reach.ports();
    let of_the_sidecar = ports.map(|ports| [ports.api, ports.admin]);
    let of_the_sidecar = of_the_sidecar.unwrap_or_default();
    if [PORT, ADMIN].contains(&app) || of_the_sidecar.contains(&app) {
        return why(&format!(
            "{app} is a port of the sidecar or of the fence; let the app listen on another one"
        ));
    }
    if [PORT, ADMIN]
        .iter()
        .any(|port| of_the_sidecar.contains(port))
    {
        return why(&format!(
            "the fence needs the ports {PORT} and {ADMIN}; give the sidecar others"
        ));
    }
    let (name, port) = obstacles::container_with_port(spec, &[PORT, ADMIN])?;
    why(&format!(
        "container {name:?} has port {port}, which the fence needs; let it listen on another one"
    ))
}

/// Reads the port of the app.
pub(super) fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(port @ 1..) => Ok(port),
        _ => Err("write the port of the app, like 8080".to_owned()),
    }
}

/// Reads the name of the lock.
pub(super) fn lock(text: &str) -> Result<Resource, String> {
    // It becomes the value of a variable, in which Kubernetes expands `$(NAME)`.
    if text.contains("$(") {
        return Err("the name of the lock must not contain $(".to_owned());
    }
    Resource::parse(text).map_err(|error| error.to_string())
}

/// Returns the fence.
pub(super) fn container(
    sidecar_settings: &SidecarSettings<'_>,
    app: u16,
    lock: Option<&Resource>,
) -> Value {
    let mut env = sidecar::env_of_helpers(sidecar_settings);
    env.extend([
        sidecar::set(
            "LEASEHOLD_FENCE_UPSTREAM",
            &format!("http://127.0.0.1:{app}"),
        ),
        sidecar::set("LEASEHOLD_FENCE_STATE_DIR", STATE_DIRECTORY),
        sidecar::set(
            "LEASEHOLD_FENCE_MAX_CONNECTIONS",
            &CONNECTIONS_MAX.to_string(),
        ),
        sidecar::set("LEASEHOLD_FENCE_MAX_REQUESTS", &REQUESTS_MAX.to_string()),
    ]);
    if let Some(lock) = lock {
        env.push(sidecar::set("LEASEHOLD_FENCE_RESOURCE", lock.as_str()));
    }
    let mut container = json!({
        "name": CONTAINER,
        "image": sidecar_settings.image,
        "args": ["fence"],
        "restartPolicy": "Always",
        "env": env,
        "ports": [
            {"name": "fence", "containerPort": PORT, "protocol": "TCP"},
            {"name": "fence-metrics", "containerPort": ADMIN, "protocol": "TCP"},
        ],
        "volumeMounts": [{"name": STATE_VOLUME, "mountPath": STATE_DIRECTORY}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": ADMIN}, "periodSeconds": 2},
        "securityContext": sidecar::security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let memory = Quantity::parse(MEMORY).expect("MEMORY must be a quantity");
    let resources = sidecar_settings.helper_resources.clone();
    let resources = resources.with_memory(&memory);
    sidecar::set_image_and_resources(&mut container, sidecar_settings, &resources);
    container
}

/// Returns the volume of its state, on a disk.
pub(super) fn volume() -> Value {
    json!({"name": STATE_VOLUME, "emptyDir": {"sizeLimit": STATE_LIMIT}})
}
