//! What a pod is given: the sidecar, its volumes, and how its apps find it.
//!
//! The sidecar keeps to the `restricted` Pod Security Standard, so that no namespace has to be
//! opened for it. Its token and its state are mounted into no other container.

use serde_json::{Value, json};

use super::annotations::Asked;
use super::ports;
use super::resources::{Budget, Resources};
use super::settings::{Injection, Ports, TakeOver};
use crate::protocol::election::ElectionName;
use crate::protocol::time::SessionTtl;

/// The sidecar's container.
pub(super) const CONTAINER: &str = "leasehold";
/// The container port of health and metrics, for monitors to select.
const PORT_NAME: &str = "leasehold";
/// Where our image has the binary; it has no shell that would look for it.
const BINARY: &str = "/leasehold";

pub(super) const TOKEN_VOLUME: &str = "leasehold-token";
pub(super) const STATE_VOLUME: &str = "leasehold-state";
pub(super) const SOCKET_VOLUME: &str = "leasehold-socket";
const TOKEN_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const STATE_DIRECTORY: &str = "/var/run/leasehold/state";
pub(super) const SOCKET_DIRECTORY: &str = "/var/run/leasehold";
const SOCKET: &str = "/var/run/leasehold/leasehold.sock";
/// Room for the state of 10,000 leases while it is written anew, and for a refused file beside it. The
/// sidecar's own memory limit bounds it too, so it is no larger than it has to be.
const STATE_LIMIT: &str = "20Mi";
/// There is a socket in it, and nothing else.
const SOCKET_LIMIT: &str = "1Mi";
/// The kubelet renews the token long before; the API server knows the pod by it.
const TOKEN_SECONDS: u32 = 3_600;

/// How apps reach the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    Ports(Ports),
    PortsAndSocket(Ports),
    /// On the node's network a port would be the whole node's: others could take this pod's locks.
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

/// What is set about one pod's sidecar, whoever set it.
#[derive(Clone, Debug)]
pub(super) struct Chosen<'a> {
    pub(super) installation: &'a Injection,
    pub(super) image: &'a str,
    pub(super) log_level: &'a str,
    pub(super) session_ttl: SessionTtl,
    pub(super) reach: Reach,
    pub(super) resources: Resources,
    pub(super) gate_resources: Resources,
    pub(super) elect: &'a [ElectionName],
    pub(super) elect_always: &'a [ElectionName],
    pub(super) elect_preferred: bool,
}

impl<'a> Chosen<'a> {
    pub(super) fn new(
        installation: &'a Injection,
        asked: &'a Asked,
        on_host_network: bool,
        budget: Budget,
    ) -> Self {
        let ports = asked.ports.unwrap_or(installation.ports);
        let fitting = match budget {
            Budget::OfThePod => Resources::default(),
            Budget::Guaranteed => Resources::exactly(&installation.guaranteed_resources),
            Budget::OfEachContainer => installation.resources.clone(),
        };
        let reach = match (asked.unix_socket, on_host_network) {
            (true, true) => Reach::Socket,
            (true, false) => Reach::PortsAndSocket(ports),
            (false, _) => Reach::Ports(ports),
        };
        Self {
            installation,
            image: asked.image.as_ref().unwrap_or(&installation.image),
            log_level: asked.log_level.as_ref().unwrap_or(&installation.log_level),
            session_ttl: asked.session_ttl.unwrap_or(installation.session_ttl),
            reach,
            resources: asked.resources.clone().unwrap_or_else(|| fitting.clone()),
            gate_resources: fitting,
            elect: &asked.elect,
            elect_always: &asked.elect_always,
            elect_preferred: asked.elect_preferred,
        }
    }

    /// The version of the sidecar, as far as it is known: ours, or what the pod's own image is
    /// tagged with.
    pub(super) fn version(&self) -> &str {
        if self.image == self.installation.image {
            return env!("CARGO_PKG_VERSION");
        }
        let name = self.image.rsplit('/').next().unwrap_or_default();
        let tag = name.split_once('@').or_else(|| name.split_once(':'));
        tag.map_or("latest", |(_, tag)| tag)
    }
}

/// The native sidecar.
pub(super) fn container(chosen: &Chosen<'_>) -> Value {
    let mut container = json!({
        "name": CONTAINER,
        "image": chosen.image,
        "args": ["sidecar"],
        "restartPolicy": "Always",
        "env": env(chosen),
        "volumeMounts": mounts(chosen),
        "startupProbe": startup_probe(),
        "securityContext": security_context(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    if let Some(ports) = chosen.reach.ports() {
        container["ports"] =
            json!([{"name": PORT_NAME, "containerPort": ports.admin, "protocol": "TCP"}]);
    }
    set_image_and_resources(&mut container, chosen, &chosen.resources);
    container
}

/// What our containers have in common.
pub(super) fn set_image_and_resources(
    container: &mut Value,
    chosen: &Chosen<'_>,
    resources: &Resources,
) {
    if let Some(policy) = chosen.installation.image_pull_policy {
        container["imagePullPolicy"] = json!(policy.as_str());
    }
    if *resources != Resources::default() {
        container["resources"] = json!(resources);
    }
}

/// It runs inside of the container: it needs no open port, no exception in a mesh, and goes on
/// a node's network as well. There is no liveness probe, because a restart by probe would be a
/// SIGTERM under a running app, and no readiness probe, because an API server that is away must not
/// turn every pod unready.
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

fn env(chosen: &Chosen<'_>) -> Vec<Value> {
    let mut env = vec![
        of_the_pod("LEASEHOLD_POD_NAME", "metadata.name"),
        of_the_pod("LEASEHOLD_POD_UID", "metadata.uid"),
        of_the_pod("LEASEHOLD_NODE_NAME", "spec.nodeName"),
        of_the_pod("LEASEHOLD_NAMESPACE", "metadata.namespace"),
        set("LEASEHOLD_STATE_DIR", STATE_DIRECTORY),
        // A native sidecar mostly gets SIGTERM when the apps have ended, and a Job waits for its end. But
        // not always: a short grace period, a preStop hook or a restart of the sidecar alone come earlier.
        set("LEASEHOLD_ON_TERM", "release-now"),
        set(
            "LEASEHOLD_SESSION_TTL",
            &chosen.session_ttl.as_secs().to_string(),
        ),
        set("LEASEHOLD_LOG_LEVEL", chosen.log_level),
        set(
            "LEASEHOLD_TOKEN_FLOOR",
            &chosen.installation.token_floor.to_string(),
        ),
    ];
    if chosen.installation.take_over == TakeOver::Strict {
        env.push(set("LEASEHOLD_TAKE_OVER", "strict"));
    }
    env.extend(listening(chosen.reach));
    // An older image that a pod asks for knows the first alone, and runs for all without being asked.
    for (variable, elections) in [
        ("LEASEHOLD_ELECT", chosen.elect),
        ("LEASEHOLD_ELECT_ALWAYS", chosen.elect_always),
    ] {
        if !elections.is_empty() {
            let names: Vec<_> = elections.iter().map(ElectionName::as_str).collect();
            env.push(set(variable, &names.join(",")));
        }
    }
    if chosen.elect_preferred {
        env.push(set("LEASEHOLD_ELECT_PREFERRED", "true"));
    }
    env
}

/// Where it listens, as far as that is not the binary's own default.
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

fn mounts(chosen: &Chosen<'_>) -> Vec<Value> {
    let mut mounts = vec![
        json!({"name": TOKEN_VOLUME, "mountPath": TOKEN_DIRECTORY, "readOnly": true}),
        json!({"name": STATE_VOLUME, "mountPath": STATE_DIRECTORY}),
    ];
    if chosen.reach.has_socket() {
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

/// A token of the pod's own service account, bound to the pod, also where the pod mounts none.
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

/// The variables by which an app finds the sidecar.
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

/// Where an app has the socket. A socket can be connected to on a read-only mount, and nobody but
/// the sidecar can put another file in its place.
pub(super) fn socket_mount() -> Value {
    json!({"name": SOCKET_VOLUME, "mountPath": SOCKET_DIRECTORY, "readOnly": true})
}

pub(super) fn set(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

fn of_the_pod(name: &str, field: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}})
}
