//! What is added to a pod: the sidecar, its volumes, and the connection of its apps.
//!
//! The sidecar conforms to the `restricted` Pod Security Standard, so that no namespace needs an
//! exception. No other container mounts its token and its state.

use serde_json::{Value, json};

use super::annotations::PodSettings;
use super::ports;
use super::resources::{Budget, Resources};
use super::settings::{Injection, Ports, TakeOver};
use crate::protocol::election::ElectionName;
use crate::protocol::time::SessionTtl;

/// The name of the sidecar's container.
pub(super) const CONTAINER: &str = "leasehold";
/// The name of the container port of health and metrics, for monitors.
const PORT_NAME: &str = "leasehold";
/// The path of the binary in the image, which has no shell.
const BINARY: &str = "/leasehold";

pub(super) const TOKEN_VOLUME: &str = "leasehold-token";
pub(super) const STATE_VOLUME: &str = "leasehold-state";
pub(super) const SOCKET_VOLUME: &str = "leasehold-socket";
const TOKEN_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const STATE_DIRECTORY: &str = "/var/run/leasehold/state";
pub(super) const SOCKET_DIRECTORY: &str = "/var/run/leasehold";
const SOCKET: &str = "/var/run/leasehold/leasehold.sock";
/// Room for the state of 10,000 leases while it is rewritten, and for a rejected file beside it. It
/// counts against the sidecar's memory limit, so it is not larger than needed.
const STATE_LIMIT: &str = "20Mi";
/// It only contains a socket.
const SOCKET_LIMIT: &str = "1Mi";
/// The kubelet renews the token long before it expires; it identifies the pod to the API server.
const TOKEN_SECONDS: u32 = 3_600;

/// How apps reach the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Ports(Ports),
    PortsAndSocket(Ports),
    /// On the host network a port would be reachable from the whole node, and others could take the
    /// locks of this pod.
    Socket,
}

impl Reach {
    pub(super) const fn has_socket(self) -> bool {
        matches!(self, Self::PortsAndSocket(_) | Self::Socket)
    }

    pub(super) const fn ports(self) -> Option<Ports> {
        match self {
            Self::Ports(ports) | Self::PortsAndSocket(ports) => Some(ports),
            Self::Socket => None,
        }
    }
}

/// The resolved settings of one pod's sidecar.
#[derive(Clone, Debug)]
pub(super) struct SidecarSettings<'a> {
    pub(super) installation: &'a Injection,
    pub(super) image: &'a str,
    pub(super) log_level: &'a str,
    pub(super) session_ttl: SessionTtl,
    pub(super) reach: Reach,
    pub(super) resources: Resources,
    pub(super) helper_resources: Resources,
    pub(super) elect: &'a [ElectionName],
    pub(super) elect_always: &'a [ElectionName],
    pub(super) elect_preferred: bool,
}

impl<'a> SidecarSettings<'a> {
    pub(super) fn new(
        installation: &'a Injection,
        settings: &'a PodSettings,
        on_host_network: bool,
        budget: Budget,
    ) -> Self {
        let ports = settings.ports.unwrap_or(installation.ports);
        let fitting = match budget {
            Budget::OfThePod => Resources::default(),
            Budget::Guaranteed => Resources::exactly(&installation.guaranteed_resources),
            Budget::OfEachContainer => installation.resources.clone(),
        };
        let reach = match (settings.unix_socket, on_host_network) {
            (true, true) => Reach::Socket,
            (true, false) => Reach::PortsAndSocket(ports),
            (false, _) => Reach::Ports(ports),
        };
        Self {
            installation,
            image: settings.image.as_ref().unwrap_or(&installation.image),
            log_level: settings
                .log_level
                .as_ref()
                .unwrap_or(&installation.log_level),
            session_ttl: settings.session_ttl.unwrap_or(installation.session_ttl),
            reach,
            resources: settings
                .resources
                .clone()
                .unwrap_or_else(|| fitting.clone()),
            helper_resources: fitting,
            elect: &settings.elect,
            elect_always: &settings.elect_always,
            elect_preferred: settings.elect_preferred,
        }
    }

    /// Returns the version of the sidecar, as far as it is known: the own version, or the tag of
    /// the pod's image.
    pub(super) fn version(&self) -> &str {
        if self.image == self.installation.image {
            return env!("CARGO_PKG_VERSION");
        }
        let name = self.image.rsplit('/').next().unwrap_or_default();
        let tag = name.split_once('@').or_else(|| name.split_once(':'));
        tag.map_or("latest", |(_, tag)| tag)
    }
}

/// Returns the native sidecar.
pub(super) fn container(sidecar_settings: &SidecarSettings<'_>) -> Value {
    let mut container = json!({
        "name": CONTAINER,
        "image": sidecar_settings.image,
        "args": ["sidecar"],
        "restartPolicy": "Always",
        "env": env(sidecar_settings),
        "volumeMounts": mounts(sidecar_settings),
        "startupProbe": startup_probe(),
        "securityContext": security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    if let Some(ports) = sidecar_settings.reach.ports() {
        container["ports"] =
            json!([{"name": PORT_NAME, "containerPort": ports.admin, "protocol": "TCP"}]);
    }
    set_image_and_resources(
        &mut container,
        sidecar_settings,
        &sidecar_settings.resources,
    );
    container
}

/// Sets what all injected containers have in common.
pub(super) fn set_image_and_resources(
    container: &mut Value,
    sidecar_settings: &SidecarSettings<'_>,
    resources: &Resources,
) {
    if let Some(policy) = sidecar_settings.installation.image_pull_policy {
        container["imagePullPolicy"] = json!(policy.as_str());
    }
    if *resources != Resources::default() {
        container["resources"] = json!(resources);
    }
}

/// It runs inside the container, so it needs no open port and no exception in a mesh, and works on
/// the host network. There is no liveness probe, because a restart by a probe would be a SIGTERM
/// under a running app. There is no readiness probe, because an outage of the API server must not
/// make pods unready.
fn startup_probe() -> Value {
    json!({
        "exec": {"command": [BINARY, "health"]},
        "periodSeconds": 1,
        "timeoutSeconds": 5,
        "failureThreshold": 60,
    })
}

pub(super) fn security_context() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "privileged": false,
        "readOnlyRootFilesystem": true,
        "runAsNonRoot": true,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    })
}

fn env(sidecar_settings: &SidecarSettings<'_>) -> Vec<Value> {
    let mut env = vec![
        of_the_pod("LEASEHOLD_POD_NAME", "metadata.name"),
        of_the_pod("LEASEHOLD_POD_UID", "metadata.uid"),
        of_the_pod("LEASEHOLD_NODE_NAME", "spec.nodeName"),
        of_the_pod("LEASEHOLD_NAMESPACE", "metadata.namespace"),
        set("LEASEHOLD_STATE_DIR", STATE_DIRECTORY),
        // A native sidecar usually gets SIGTERM when the apps have ended, and a Job waits for its
        // end. But a short grace period, a preStop hook or a restart of the sidecar alone come
        // earlier.
        set("LEASEHOLD_ON_TERM", "release-now"),
        set(
            "LEASEHOLD_SESSION_TTL",
            &sidecar_settings.session_ttl.as_secs().to_string(),
        ),
        set("LEASEHOLD_LOG_LEVEL", sidecar_settings.log_level),
        set(
            "LEASEHOLD_TOKEN_FLOOR",
            &sidecar_settings.installation.token_floor.to_string(),
        ),
    ];
    if sidecar_settings.installation.take_over == TakeOver::Strict {
        env.push(set("LEASEHOLD_TAKE_OVER", "strict"));
    }
    env.extend(listening(sidecar_settings.reach));
    // An older image of a pod only knows the first variable, and runs for all its elections without
    // being polled.
    for (variable, elections) in [
        ("LEASEHOLD_ELECT", sidecar_settings.elect),
        ("LEASEHOLD_ELECT_ALWAYS", sidecar_settings.elect_always),
    ] {
        if !elections.is_empty() {
            let names: Vec<_> = elections.iter().map(ElectionName::as_str).collect();
            env.push(set(variable, &names.join(",")));
        }
    }
    if sidecar_settings.elect_preferred {
        env.push(set("LEASEHOLD_ELECT_PREFERRED", "true"));
    }
    env
}

/// Returns the listen addresses that are not the defaults of the binary.
fn listening(reach: Reach) -> Vec<Value> {
    let mut env = Vec::new();
    if let Some(Ports { api, admin }) = reach.ports() {
        if api != ports::API {
            env.push(set("LEASEHOLD_LISTEN", &format!("localhost:{api}")));
        }
        if admin != ports::ADMIN {
            env.push(set("LEASEHOLD_ADMIN_LISTEN", &format!("[::]:{admin}")));
        }
    } else {
        env.push(set("LEASEHOLD_LISTEN", "none"));
        env.push(set("LEASEHOLD_ADMIN_LISTEN", "none"));
    }
    if reach.has_socket() {
        env.push(set("LEASEHOLD_UNIX_SOCKET", SOCKET));
    }
    env
}

fn mounts(sidecar_settings: &SidecarSettings<'_>) -> Vec<Value> {
    let mut mounts = vec![
        json!({"name": TOKEN_VOLUME, "mountPath": TOKEN_DIRECTORY, "readOnly": true}),
        json!({"name": STATE_VOLUME, "mountPath": STATE_DIRECTORY}),
    ];
    if sidecar_settings.reach.has_socket() {
        mounts.push(json!({"name": SOCKET_VOLUME, "mountPath": SOCKET_DIRECTORY}));
    }
    mounts
}

pub(super) fn volumes(reach: Reach) -> Vec<Value> {
    let in_memory =
        |name, limit| json!({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": limit}});
    let mut volumes = vec![token_volume(), in_memory(STATE_VOLUME, STATE_LIMIT)];
    if reach.has_socket() {
        volumes.push(in_memory(SOCKET_VOLUME, SOCKET_LIMIT));
    }
    volumes
}

/// Returns a token of the pod's own service account, bound to the pod, even if the pod mounts none.
fn token_volume() -> Value {
    let namespace = json!({"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}});
    json!({
        "name": TOKEN_VOLUME,
        "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
            {"configMap": {
                "name": "kube-root-ca.crt",
                "items": [{"key": "ca.crt", "path": "ca.crt"}],
            }},
            {"downwardAPI": {"items": [namespace]}},
        ]},
    })
}

/// Returns the variables with which an app finds the sidecar.
pub(super) fn env_of_apps(reach: Reach) -> Vec<(&'static str, String)> {
    let url = match reach.ports() {
        Some(Ports { api, .. }) => format!("http://127.0.0.1:{api}"),
        None => format!("unix://{SOCKET}"),
    };
    let mut env = vec![("LEASEHOLD_URL", url)];
    if reach.has_socket() {
        env.push(("LEASEHOLD_SOCKET", SOCKET.to_owned()));
    }
    env
}

/// Returns the variables of the other containers with our binary.
pub(super) fn env_of_helpers(sidecar_settings: &SidecarSettings<'_>) -> Vec<Value> {
    let mut env = env_of_apps(sidecar_settings.reach);
    env.push(("LEASEHOLD_LOG_LEVEL", sidecar_settings.log_level.to_owned()));
    env.iter().map(|(name, value)| set(name, value)).collect()
}

/// Returns the mount of the socket for an app. Clients can connect on a read-only mount, and only
/// the sidecar can replace the file.
pub(super) fn socket_mount() -> Value {
    json!({"name": SOCKET_VOLUME, "mountPath": SOCKET_DIRECTORY, "readOnly": true})
}

pub(super) fn set(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

fn of_the_pod(name: &str, field: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}})
}
