//! A small world to look at: pods that hold locks and wait, two of them for each other.

use std::sync::Arc;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::harness::{Cluster, Curl, LongPoll, Namespace, Operator, Sidecar, TakeOver, apply};
use crate::support::{BINARY, sidecar, until_queued};

/// The node that sidecars name.
const NODE: &str = "node-1";

/// What happens in the cluster of the pictures.
pub(super) struct World {
    pub(super) cluster: Arc<Cluster>,
    sidecars: Vec<Sidecar>,
    _operator: Operator,
    /// They hold and wait while they exist.
    apps: Vec<Curl>,
    waiting: Vec<LongPoll>,
}

impl World {
    /// Starts it.
    pub(super) async fn start() -> Result<Self> {
        let cluster = Cluster::of_its_own(TakeOver::Strict).await?;
        let pod = cluster.operator_pod("leasehold-operator-0").await?;
        let operator = Operator::start(BINARY, &pod, &[]).await?;
        operator.until_active().await?;
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
        apply(&cluster.admin().await?, &node).await?;
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        patch_status(&cluster.operator_namespace().await?, "node", NODE, &ready).await?;
        let mut world = Self {
            sidecars: vec![],
            _operator: operator,
            apps: vec![],
            waiting: vec![],
            cluster,
        };
        world.payments().await?;
        world.reports().await?;
        Ok(world)
    }

    /// Two pods that wait for each other.
    async fn payments(&mut self) -> Result<()> {
        let namespace = namespace(&self.cluster, "payments").await?;
        let first = running(&namespace, "ledger-0").await?;
        let second = running(&namespace, "ledger-1").await?;
        self.hold(&first, "accounts", "ledger").await?;
        self.hold(&second, "refunds", "ledger").await?;
        self.wait(&first, "refunds", "ledger").await?;
        self.wait(&second, "accounts", "ledger").await?;
        for lock in ["accounts", "refunds"] {
            until_queued(&namespace, lock, 1).await?;
        }
        self.sidecars.extend([first, second]);
        Ok(())
    }

    /// A queue, and locks that are free or held alone.
    async fn reports(&mut self) -> Result<()> {
        let namespace = namespace(&self.cluster, "reports").await?;
        let mut pods = Vec::new();
        for name in ["worker-0", "worker-1", "worker-2"] {
            pods.push(running(&namespace, name).await?);
        }
        self.hold(&pods[0], "nightly-report", "report").await?;
        self.hold(&pods[1], "export/customers", "export").await?;
        self.hold(&pods[2], "export/orders", "export").await?;
        self.wait(&pods[1], "nightly-report", "report").await?;
        until_queued(&namespace, "nightly-report", 1).await?;
        self.wait(&pods[2], "nightly-report", "report").await?;
        until_queued(&namespace, "nightly-report", 2).await?;
        self.sidecars.extend(pods);
        self.use_once("import").await?;
        self.use_once("index/rebuild").await
    }

    async fn hold(&mut self, pod: &Sidecar, lock: &str, owner: &str) -> Result<()> {
        let app = pod.curl_hold(&json!({"resource": lock, "ownerId": owner}))?;
        app.until("acquired").await?;
        self.apps.push(app);
        Ok(())
    }

    async fn wait(&mut self, pod: &Sidecar, lock: &str, owner: &str) -> Result<()> {
        let body =
            json!({"resource": lock, "ownerId": owner, "ttlSeconds": 3600, "waitSeconds": 240});
        self.waiting.push(pod.wait_with(&body).await?);
        Ok(())
    }

    /// A lock that is free afterwards.
    pub(super) async fn use_once(&self, lock: &str) -> Result<()> {
        let pod = self.sidecars.last().context("a pod")?;
        let lease = pod.acquire_for_long(lock).await?.granted()?;
        pod.release_for_good(&lease.id).await.map(drop)
    }
}

/// A namespace with exactly this name.
async fn namespace(cluster: &Arc<Cluster>, name: &str) -> Result<Namespace> {
    let client = cluster.admin().await?;
    let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    let namespaces = Api::<NamespaceObject>::all(client.clone());
    namespaces.create(&PostParams::default(), &object).await?;
    let namespace = Namespace {
        name: name.to_owned(),
        client,
        cluster: Arc::clone(cluster),
    };
    namespace.service_account("default").await?;
    namespace.service_account("app").await?;
    namespace.bind_sidecar_role("app").await?;
    Ok(namespace)
}

/// A pod that runs, as far as the API server knows, and its sidecar.
async fn running(namespace: &Namespace, name: &str) -> Result<Sidecar> {
    let pod = namespace.pod(name).await?;
    let path = format!("/api/v1/namespaces/{}/pods/{name}/binding", namespace.name);
    let target = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE}});
    let bind = http::Request::post(path)
        .header("content-type", "application/json")
        .body(target.to_string().into_bytes())?;
    namespace.client.request_text(bind).await?;
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    patch_status(namespace, "pod", name, &ready).await?;
    sidecar(&pod, 300).await
}

async fn patch_status(namespace: &Namespace, kind: &str, name: &str, patch: &Value) -> Result<()> {
    let patch = patch.to_string();
    let args = ["patch", kind, name, "--subresource=status", "-p", &patch];
    namespace.kubectl(&args).await?.ok().map(drop)
}
