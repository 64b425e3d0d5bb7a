//! A real kube-controller-manager with the only controller that a test needs, and pods that run on
//! a node, which that controller requires. No kubelet runs them; the administrator writes their
//! status.

use std::process::Command;

use anyhow::{Result, bail};
use serde_json::json;

use super::binaries::target_directory;
use super::cluster::Namespace;
use super::control_plane::ControlPlane;
use super::pod::Pod;
use super::process::Process;

/// The controller that creates the endpoints of services.
const CONTROLLERS: &str = "endpointslice-controller";
const NODE: &str = "node-1";

/// A running kube-controller-manager. Dropping it kills it.
pub(crate) struct ControllerManager {
    _process: Process,
}

impl ControllerManager {
    /// Starts one of the default version, whichever version the cluster has. It is ready a moment
    /// later.
    pub(crate) fn start(control_plane: &ControlPlane) -> Result<Self> {
        let binary = target_directory().join("controlplane/v1.36/kube-controller-manager");
        if !binary.is_file() {
            bail!("{} is missing; run `make controlplane`", binary.display());
        }
        let mut command = Command::new(binary);
        command
            .arg("--kubeconfig")
            .arg(&control_plane.admin().path)
            .arg(format!("--controllers={CONTROLLERS}"))
            .args(["--leader-elect=false", "--secure-port=0"]);
        let log = control_plane.directory().join("controller-manager.log");
        let process = Process::spawn("kube-controller-manager", &mut command, &log)?;
        Ok(Self { _process: process })
    }
}

impl Namespace {
    /// Makes pods run on a node, each ready at its own address, as far as the objects show. Call it
    /// once per control plane.
    pub(crate) async fn make_ready(&self, pods: &[Pod]) -> Result<()> {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
        self.send(http::Method::POST, "/api/v1/nodes", &node)
            .await?;
        for (number, pod) in pods.iter().enumerate() {
            let path = format!("/api/v1/namespaces/{}/pods/{}", self.name, pod.name);
            let binding = json!({"apiVersion": "v1", "kind": "Binding",
                "metadata": {"name": pod.name}, "target": {"kind": "Node", "name": NODE}});
            let bind = format!("{path}/binding");
            self.send(http::Method::POST, &bind, &binding).await?;
            let address = format!("10.244.0.{}", number + 2);
            let status = json!({"status": {
                "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                "conditions": [{"type": "Ready", "status": "True"}],
            }});
            let report = format!("{path}/status");
            self.send(http::Method::PATCH, &report, &status).await?;
        }
        Ok(())
    }

    async fn send(&self, method: http::Method, path: &str, body: &serde_json::Value) -> Result<()> {
        let content = match method {
            http::Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content)
            .body(body.to_string().into_bytes())?;
        self.client.request::<serde_json::Value>(request).await?;
        Ok(())
    }
}
