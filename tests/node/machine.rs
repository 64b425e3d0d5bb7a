//! A whole cluster with one node, which all tests share.
//!
//! Nothing is shut down gracefully: `enter.sh` has a separate process namespace, and everything in
//! it ends with the test.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use serde_json::Value;
use tokio::sync::{Mutex, OnceCell};

use crate::harness::{Cluster, Process, eventually, now, target_directory};
use crate::parts::{self, Folder, NODE};

/// How long the node may take to become ready. It takes 6 s on an idle machine.
const START: Duration = Duration::from_secs(120);

/// A cluster with one node.
pub(crate) struct Machine {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) folder: Folder,
    pub(crate) kubelet: Process,
    controllers: Mutex<Option<Process>>,
    _others: [Process; 3],
}

impl Machine {
    /// Returns the machine that the tests of this process share, started by the first of them.
    pub(crate) async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<Result<Machine, String>> = OnceCell::const_new();

        let start = async || Self::start().await.map_err(|error| format!("{error:#}"));
        let shared = SHARED.get_or_init(start).await;
        shared.as_ref().map_err(|error| anyhow!("{error}"))
    }

    async fn start() -> Result<Self> {
        let began = now();
        let folder = Folder::from_env()?;
        // Started concurrently: both take seconds.
        let containerd = parts::start_containerd(&folder)?;
        let cluster = Cluster::for_a_node().await?;
        let control_plane = cluster.control_plane();
        let socket = folder.containerd_socket();
        eventually("containerd to listen", START, async || {
            let connected = tokio::net::UnixStream::connect(&socket).await;
            connected.is_ok().then_some(())
        })
        .await
        .map_err(|error| error.context(containerd.last_words()))?;
        for archive in ["node/app.tar", "image/leasehold.tar"] {
            parts::load_image(&folder, &target_directory().join(archive))?;
        }
        parts::name_image_as_in_examples(&folder)?;
        let access = |user: &str| control_plane.component(user);
        let kubelet = parts::start_kubelet(&folder, &access("system:node:node-1")?)?;
        let proxy = parts::start_proxy(&folder, &access("system:kube-proxy")?)?;
        let scheduler = parts::start_scheduler(&folder, &access("system:kube-scheduler")?)?;
        let controllers = parts::start_controllers(&folder, control_plane)?;
        let machine = Self {
            cluster,
            folder,
            kubelet,
            controllers: Mutex::new(Some(controllers)),
            _others: [containerd, proxy, scheduler],
        };
        machine.until_ready().await?;
        crate::tell(&format!(
            "measured: node ready after {:?}",
            now().since(began)
        ))?;
        Ok(machine)
    }

    /// Returns the node object.
    pub(crate) async fn node(&self) -> Result<Value> {
        let client = self.cluster.admin().await?;
        let request = http::Request::get(format!("/api/v1/nodes/{NODE}")).body(vec![])?;
        Ok(client.request(request).await?)
    }

    /// Stops the controllers, which would treat a node as lost after some time without an API
    /// server. In real clusters they stop automatically, because they lose their own election.
    pub(crate) async fn stop_controllers(&self) -> Result<()> {
        match self.controllers.lock().await.take() {
            Some(process) => process.kill(),
            None => Ok(()),
        }
    }

    /// Restarts them.
    pub(crate) async fn start_controllers(&self) -> Result<()> {
        let process = parts::start_controllers(&self.folder, self.cluster.control_plane())?;
        *self.controllers.lock().await = Some(process);
        Ok(())
    }

    /// Waits until the node is ready.
    pub(crate) async fn until_ready(&self) -> Result<()> {
        let ready = eventually("the node to be ready", START, async || {
            let node = self.node().await.ok()?;
            let conditions = node["status"]["conditions"].as_array()?.clone();
            let ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
            conditions.iter().any(ready).then_some(())
        });
        ready
            .await
            .map_err(|error| error.context(self.kubelet.last_words()))
    }
}
