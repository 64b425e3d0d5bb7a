//! A control plane with Leasehold installed: definitions, roles and policies as we ship them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, anyhow};
use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::OnceCell;

use super::apply::{apply_file, repository, until_policies_are_enforced, until_served};
use super::binaries::KubeVersion;
use super::control_plane::{ControlPlane, Purpose};

/// Who may take over from a dead holder: which of the two policy sets is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeOver {
    /// Only the operator.
    Strict,
    /// Any agent of the namespace.
    Peer,
}

/// A control plane with Leasehold installed.
pub(crate) struct Cluster {
    control_plane: ControlPlane,
    namespaces: AtomicU32,
}

impl Cluster {
    /// The one that the tests of this process share, started by the first who asks. For tests
    /// that leave its control plane alone.
    pub(crate) async fn shared(mode: TakeOver) -> Result<Arc<Self>> {
        static STRICT: OnceCell<Result<Arc<Cluster>, String>> = OnceCell::const_new();
        static PEER: OnceCell<Result<Arc<Cluster>, String>> = OnceCell::const_new();

        let cell = match mode {
            TakeOver::Strict => &STRICT,
            TakeOver::Peer => &PEER,
        };
        let started = cell.get_or_init(|| async {
            let version = KubeVersion::from_env().map_err(|error| format!("{error:#}"))?;
            let cluster = Self::start(version, mode, Purpose::ManyTests).await;
            cluster.map(Arc::new).map_err(|error| format!("{error:#}"))
        });
        started.await.clone().map_err(|error| anyhow!("{error}"))
    }

    /// One of one's own, whose control plane may be stopped, frozen and restored.
    pub(crate) async fn fresh(mode: TakeOver) -> Result<Arc<Self>> {
        Self::fresh_on(KubeVersion::from_env()?, mode).await
    }

    /// One of one's own, of a certain version.
    pub(crate) async fn fresh_on(version: KubeVersion, mode: TakeOver) -> Result<Arc<Self>> {
        let cluster = Self::start(version, mode, Purpose::OneTest).await;
        cluster.map(Arc::new)
    }

    /// One to measure on: durable, and without the tests' audit.
    pub(crate) async fn measured(mode: TakeOver) -> Result<Arc<Self>> {
        let version = KubeVersion::from_env()?;
        let cluster = Self::start(version, mode, Purpose::Measuring).await;
        cluster.map(Arc::new)
    }

    async fn start(version: KubeVersion, mode: TakeOver, purpose: Purpose) -> Result<Self> {
        let control_plane = ControlPlane::start(version, purpose).await?;
        install(&control_plane.admin().client().await?, mode).await?;
        Ok(Self {
            control_plane,
            namespaces: AtomicU32::new(0),
        })
    }

    /// Its control plane.
    pub(crate) fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// A client with the administrator's rights.
    pub(crate) async fn admin(&self) -> Result<Client> {
        self.control_plane.admin().client().await
    }

    /// A namespace of the test's own, with the service accounts `default` and `app`. `app` is bound
    /// to the sidecar's role.
    pub(crate) async fn namespace(self: &Arc<Self>, about: &str) -> Result<Namespace> {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let name = format!("{about}-{number}");
        let client = self.admin().await?;
        let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<NamespaceObject>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await?;
        let namespace = Namespace {
            name,
            client,
            cluster: Arc::clone(self),
        };
        // No controller makes it here, and a pod that names no account needs it.
        namespace.service_account("default").await?;
        namespace.service_account("app").await?;
        namespace.bind_sidecar_role("app").await?;
        Ok(namespace)
    }
}

/// A namespace of a test's own.
pub(crate) struct Namespace {
    /// Its name.
    pub(crate) name: String,
    /// A client with the administrator's rights.
    pub(crate) client: Client,
    /// Where it is.
    pub(crate) cluster: Arc<Cluster>,
}

impl Namespace {
    /// Makes a service account that may do nothing.
    pub(crate) async fn service_account(&self, name: &str) -> Result<()> {
        let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<ServiceAccount>::namespaced(self.client.clone(), &self.name)
            .create(&PostParams::default(), &object)
            .await?;
        Ok(())
    }

    /// Gives a service account the sidecar's role in this namespace.
    pub(crate) async fn bind_sidecar_role(&self, account: &str) -> Result<()> {
        let object = serde_json::from_value(json!({
            "metadata": {"name": format!("{account}-leasehold-sidecar")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": "leasehold-sidecar"},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.name}],
        }))?;
        Api::<RoleBinding>::namespaced(self.client.clone(), &self.name)
            .create(&PostParams::default(), &object)
            .await?;
        Ok(())
    }

    /// Runs kubectl in this namespace as the administrator.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<super::Output> {
        let args = [&["--namespace", &self.name], args].concat();
        self.cluster.control_plane.admin().kubectl(&args).await
    }
}

async fn install(client: &Client, mode: TakeOver) -> Result<()> {
    for kind in ["distributedlocks", "locksessions"] {
        let file = format!("crds/{kind}.leasehold.dev.yaml");
        apply_file(client, &repository(&file)).await?;
    }
    for kind in ["distributedlocks", "locksessions"] {
        until_served(client, kind).await?;
    }
    let left_out = match mode {
        TakeOver::Strict => "take-over-peer.yaml",
        TakeOver::Peer => "take-over-strict.yaml",
    };
    for folder in ["rbac", "admission"] {
        let folder = repository("charts/leasehold/files").join(folder);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&folder)? {
            files.push(entry?.path());
        }
        files.sort();
        for file in files.iter().filter(|file| !file.ends_with(left_out)) {
            apply_file(client, file).await?;
        }
    }
    until_policies_are_enforced(client).await
}
