//! Leasehold on the node, installed with Helm 4 as a platform engineer does it, and namespaces that
//! use it.

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::app::{Wanted, asking_pod};
use crate::harness::{Helm, HelmVersion, Namespace, OPERATOR_NAMESPACE, apply, eventually, now};
use crate::machine::Machine;
use crate::pods::LIMIT;

const CHART: &str = "charts/leasehold";
pub(crate) const NAME: &str = "leasehold";
/// Values beyond the chart's defaults. The Service of an election's leader needs the label.
const VALUES: [&str; 2] = [
    "--set",
    "operator.leaderLabels=true,operator.unreadyLeaderSeconds=5",
];

/// The release that the tests share.
pub(crate) struct Leasehold {
    pub(crate) machine: &'static Machine,
    helm: Helm,
}

impl Leasehold {
    /// Returns the shared release. The first test installs it.
    pub(crate) async fn installed() -> Result<&'static Self> {
        static SHARED: OnceCell<Result<Leasehold, String>> = OnceCell::const_new();

        let install = async || Self::install().await.map_err(|error| format!("{error:#}"));
        let shared = SHARED.get_or_init(install).await;
        shared.as_ref().map_err(|error| anyhow!("{error}"))
    }

    async fn install() -> Result<Self> {
        let machine = Machine::shared().await?;
        let helm = Helm::find(HelmVersion::Four, machine.cluster.control_plane())?;
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": OPERATOR_NAMESPACE,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
        apply(&machine.cluster.admin().await?, &object).await?;
        machine.cluster.operator_namespace().await?.limit().await?;
        let leasehold = Self { machine, helm };
        leasehold.install_again().await?;
        Ok(leasehold)
    }

    /// Installs it, for the first time or after an uninstallation.
    pub(crate) async fn install_again(&self) -> Result<()> {
        let began = now();
        self.helm(&[&["install", NAME, CHART, "--wait"], &VALUES[..]].concat())
            .await?;
        crate::tell(&format!(
            "measured: chart installed and ready after {:?}",
            now().since(began)
        ))
    }

    /// Upgrades to the same chart with further values.
    pub(crate) async fn upgrade(&self, values: &[&str]) -> Result<String> {
        let upgrade = ["upgrade", NAME, CHART, "--reset-values", "--wait"];
        self.helm(&[&upgrade[..], &VALUES[..], values].concat())
            .await
    }

    pub(crate) async fn uninstall(&self) -> Result<String> {
        self.helm(&["uninstall", NAME]).await
    }

    /// Returns the operator's pods that exist and are not being deleted.
    pub(crate) async fn operators(&self) -> Result<Vec<Value>> {
        let system = self.machine.cluster.operator_namespace().await?;
        let pods = system
            .kubectl(&["get", "pods", "-o", "json"])
            .await?
            .json()?;
        let pods = pods["items"].as_array().context("a list must have items")?;
        let stays = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        Ok(pods.iter().filter(stays).cloned().collect())
    }

    /// Waits until the pods that an upgrade or an uninstallation replaced are gone. Until then they
    /// still answer the API server.
    pub(crate) async fn until_settled(&self) -> Result<()> {
        let system = self.machine.cluster.operator_namespace().await?;
        eventually("the former operator's pods to be gone", LIMIT, async || {
            let pods = system.kubectl(&["get", "pods", "-o", "json"]).await.ok()?;
            let pods = pods.json().ok()?;
            let goes = |pod: &Value| !pod["metadata"]["deletionTimestamp"].is_null();
            (!pods["items"].as_array()?.iter().any(goes)).then_some(())
        })
        .await
    }

    /// Waits until all of the operator's pods are ready.
    pub(crate) async fn until_available(&self) -> Result<()> {
        let system = self.machine.cluster.operator_namespace().await?;
        let status = [
            "rollout",
            "status",
            "deployment/leasehold-operator",
            "--timeout=60s",
        ];
        system.kubectl(&status).await?.ok().map(drop)
    }

    /// Runs Helm in the release's namespace.
    pub(crate) async fn helm(&self, args: &[&str]) -> Result<String> {
        let args = [&["--namespace", OPERATOR_NAMESPACE], args].concat();
        let output = self.helm.run(&args).await?;
        let system = self.machine.cluster.operator_namespace().await?;
        match output.ok() {
            Ok(said) => Ok(said),
            Err(error) => {
                // A pod that is not ready logs the reason.
                let pods = system.kubectl(&["describe", "pods"]).await?.ok()?;
                let logs = [
                    "logs",
                    "--selector",
                    "app.kubernetes.io/name=leasehold",
                    "--tail=20",
                ];
                let logs = system.kubectl(&logs).await?;
                Err(error.context(format!("{pods}\n{logs:?}")))
            }
        }
    }

    /// Creates a strict namespace in which pods get the sidecar on request.
    pub(crate) async fn namespace(&self, about: &str) -> Result<Namespace> {
        let labels = json!({"leasehold.dev/injection": "on-request"});
        let namespace = self.machine.namespace(about, &labels).await?;
        eventually(
            "the operator to bind the sidecars' role",
            LIMIT,
            async || {
                let binding = ["get", "rolebinding", "leasehold-sidecar"];
                namespace.kubectl(&binding).await.ok()?.ok().ok().map(drop)
            },
        )
        .await?;
        ensure!(namespace.name != OPERATOR_NAMESPACE);
        self.until_injected(&namespace).await?;
        Ok(namespace)
    }

    /// Waits until pods get the sidecar. A replica is ready a moment before the API server can
    /// reach it, and until then requests are refused.
    pub(crate) async fn until_injected(&self, namespace: &Namespace) -> Result<()> {
        let pods = Api::<Pod>::namespaced(namespace.client.clone(), &namespace.name);
        let pod = serde_json::from_value(asking_pod("asking", "exit 0", &Wanted::default()))?;
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        eventually("a pod to get its sidecar", LIMIT, async || {
            let pod = pods.create(&dry, &pod).await.ok()?;
            let labels = pod.metadata.labels?;
            labels.contains_key("leasehold.dev/injected").then_some(())
        })
        .await
    }
}
