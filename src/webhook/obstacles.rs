//! Pods to which the sidecar cannot be added, and why.
//!
//! The API server or the kubelet would reject them later, with errors about containers that the
//! pod's author did not write. Here they are rejected with an error about the pod.

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::sidecar::{self, Reach};
use super::{excerpt, fence, gate, is_native_sidecar};

/// The node labels of the operating system; the second is the older name.
const OS_LABELS: [&str; 2] = ["kubernetes.io/os", "beta.kubernetes.io/os"];

/// Returns why a pod cannot have a sidecar.
pub(super) fn find(spec: &PodSpec, reach: Reach) -> Option<String> {
    if is_for_windows(spec) {
        return Some("the sidecar does not run on Windows".to_owned());
    }
    if spec.host_network == Some(true) && reach != Reach::Socket {
        return Some(
            "the pod uses the host network, where every process of the node can reach a port; set \
             config.leasehold.dev/unix-socket: \"true\" to use a Unix socket"
                .to_owned(),
        );
    }
    name_taken(spec)
        .or_else(|| port_taken(spec, reach))
        .or_else(|| mount_taken(spec, reach))
}

fn is_for_windows(spec: &PodSpec) -> bool {
    let named = spec.os.as_ref().map(|os| os.name.as_str());
    let selects = |label: &&str| {
        let selector = spec.node_selector.as_ref()?;
        selector.get(*label).map(String::as_str)
    };
    let selected = OS_LABELS.iter().filter_map(selects);
    selected.chain(named).any(|os| os == "windows")
}

/// Checks for the names of injected containers and volumes, in a pod without a sidecar.
fn name_taken(spec: &PodSpec) -> Option<String> {
    let ours = [sidecar::CONTAINER, gate::CONTAINER, fence::CONTAINER];
    let container = containers(spec).find(|container| ours.contains(&container.name.as_str()));
    if let Some(container) = container {
        return Some(format!(
            "the pod has a container {:?}, a name that is reserved for the injection; rename it",
            container.name
        ));
    }
    let ours = [
        sidecar::TOKEN_VOLUME,
        sidecar::STATE_VOLUME,
        sidecar::SOCKET_VOLUME,
        fence::STATE_VOLUME,
    ];
    let mut volumes = spec.volumes.iter().flatten();
    let volume = volumes.find(|volume| ours.contains(&volume.name.as_str()))?;
    Some(format!(
        "the pod has a volume {:?}, a name that is reserved for the injection; rename it",
        volume.name
    ))
}

/// All containers share the pod's ports.
fn port_taken(spec: &PodSpec, reach: Reach) -> Option<String> {
    let ours = reach.ports()?;
    let (container, port) = container_with_port(spec, &[ours.api, ours.admin])?;
    let name = if port == ours.api { "api" } else { "admin" };
    Some(format!(
        "container {container:?} has port {port}, which the sidecar needs; give the sidecar another one \
         with config.leasehold.dev/ports: {name}=PORT"
    ))
}

/// Returns the first container that has one of these ports.
pub(super) fn container_with_port(spec: &PodSpec, ours: &[u16]) -> Option<(String, u16)> {
    containers(spec).find_map(|container| {
        let ports = container.ports.iter().flatten();
        let mut tcp =
            ports.filter(|port| port.protocol.as_deref().is_none_or(|name| name == "TCP"));
        let port = tcp.find_map(|port| {
            let port = u16::try_from(port.container_port).ok()?;
            ours.contains(&port).then_some(port)
        })?;
        Some((excerpt(&container.name), port))
    })
}

fn mount_taken(spec: &PodSpec, reach: Reach) -> Option<String> {
    if !reach.has_socket() {
        return None;
    }
    let is_ours = |path: &str| path.trim_end_matches('/') == sidecar::SOCKET_DIRECTORY;
    let mut containers = containers(spec).filter(|container| {
        let mut mounts = container.volume_mounts.iter().flatten();
        mounts.any(|mount| is_ours(&mount.mount_path))
    });
    let container = containers.next()?;
    Some(format!(
        "container {:?} mounts a volume at {}, the path of the sidecar's socket; mount it elsewhere",
        excerpt(&container.name),
        sidecar::SOCKET_DIRECTORY
    ))
}

/// Returns a warning for a mesh whose proxy is not a native sidecar: it ends before the sidecar
/// releases its locks.
pub(super) fn early_proxy(spec: &PodSpec) -> Option<String> {
    let is_proxy = |container: &&Container| super::MESH.contains(&container.name.as_str());
    let proxy = spec.containers.iter().find(is_proxy)?;
    Some(format!(
        "{} is no native sidecar here and ends before leasehold does: what the pod still holds is \
         then freed only when the pod has ended. Let the mesh use native sidecars, or not redirect traffic to \
         the API server",
        proxy.name
    ))
}

/// Returns the containers and init containers.
fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    let inits = spec.init_containers.iter().flatten();
    spec.containers.iter().chain(inits)
}

/// Returns the index of the sidecar among the init containers, if the pod has it.
pub(super) fn injected_at(spec: &PodSpec) -> Option<usize> {
    let mut inits = spec.init_containers.iter().flatten();
    inits.position(|init| init.name == sidecar::CONTAINER && is_native_sidecar(init))
}
