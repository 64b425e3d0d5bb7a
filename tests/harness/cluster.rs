//! A control plane with Leasehold installed: the shipped definitions, roles and policies, and the
//! operator's namespace and service account. No process of ours runs there unless a test starts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, anyhow};
use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::apply::{
    EFFECT, apply, apply_file, repository, until_policies_are_enforced, until_served,
};
use super::binaries::KubeVersion;
use super::control_plane::{ControlPlane, Purpose};
use super::pod::Pod;
use super::wait::eventually;

/// The operator's namespace. The policies refer to it by this name, and to the account by the next.
pub(crate) const OPERATOR_NAMESPACE: &str = "leasehold-system";
/// The operator's service account.
pub(crate) const OPERATOR_ACCOUNT: &str = "leasehold-operator";
const RBAC: &str = "charts/leasehold/files/rbac";
/// A file that is installed only for tests that request it.
const LEADER_LABELS: &str = "operator-leader-labels.yaml";

/// Which processes may take over from an expired holder: this selects one of the two policy sets.
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
    /// Returns the cluster that the tests of this process share, started by the first of them. For
    /// tests that do not change its control plane.
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

    /// Returns another cluster for many tests, which share something else in it.
    pub(crate) async fn of_its_own(mode: TakeOver) -> Result<Arc<Self>> {
        let version = KubeVersion::from_env()?;
        let cluster = Self::start(version, mode, Purpose::ManyTests).await;
        cluster.map(Arc::new)
    }

    /// Returns a separate cluster for one test, which may stop, freeze and restore its control
    /// plane.
    pub(crate) async fn fresh(mode: TakeOver) -> Result<Arc<Self>> {
        Self::fresh_on(KubeVersion::from_env()?, mode).await
    }

    /// Returns a separate cluster of this version.
    pub(crate) async fn fresh_on(version: KubeVersion, mode: TakeOver) -> Result<Arc<Self>> {
        let cluster = Self::start(version, mode, Purpose::OneTest).await;
        cluster.map(Arc::new)
    }

    /// Returns a cluster in which nothing of ours is installed yet.
    pub(crate) async fn bare(version: KubeVersion) -> Result<Arc<Self>> {
        let control_plane = ControlPlane::start(version, Purpose::ManyTests).await?;
        Ok(Arc::new(Self {
            control_plane,
            namespaces: AtomicU32::new(0),
        }))
    }

    /// Returns a cluster for measurements: durable, and without the tests' audit.
    pub(crate) async fn measured(mode: TakeOver) -> Result<Arc<Self>> {
        let version = KubeVersion::from_env()?;
        let cluster = Self::start(version, mode, Purpose::Measuring).await;
        cluster.map(Arc::new)
    }

    /// Returns a control plane for a node. Nothing of ours is installed: Helm does that.
    pub(crate) async fn for_a_node() -> Result<Arc<Self>> {
        let control_plane = ControlPlane::start(KubeVersion::Default, Purpose::Node).await?;
        Ok(Arc::new(Self {
            control_plane,
            namespaces: AtomicU32::new(0),
        }))
    }

    async fn start(version: KubeVersion, mode: TakeOver, purpose: Purpose) -> Result<Self> {
        let control_plane = ControlPlane::start(version, purpose).await?;
        install(&control_plane.admin().client().await?, mode).await?;
        Ok(Self {
            control_plane,
            namespaces: AtomicU32::new(0),
        })
    }

    /// Returns its control plane.
    pub(crate) fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// Returns a client with the administrator's rights.
    pub(crate) async fn admin(&self) -> Result<Client> {
        self.control_plane.admin().client().await
    }

    /// Creates a namespace for one test, with the service accounts `default` and `app`. `app` is
    /// bound to the sidecar's role.
    pub(crate) async fn namespace(self: &Arc<Self>, about: &str) -> Result<Namespace> {
        let namespace = self.bare_namespace(about, &json!({})).await?;
        // No controller creates it here, and a pod that names no account needs it.
        namespace.service_account("default").await?;
        namespace.service_account("app").await?;
        namespace.bind_sidecar_role("app").await?;
        Ok(namespace)
    }

    /// Creates a namespace for one test with these labels. It contains only what the cluster's own
    /// controllers create.
    pub(crate) async fn bare_namespace(
        self: &Arc<Self>,
        about: &str,
        labels: &Value,
    ) -> Result<Namespace> {
        let number = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let name = format!("{about}-{number}");
        let client = self.admin().await?;
        let object = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
        Api::<NamespaceObject>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await?;
        Ok(Namespace {
            name,
            client,
            cluster: Arc::clone(self),
        })
    }

    /// Installs a policy of the test beside ours, and waits until it is in effect.
    pub(crate) async fn enforce(&self, policy: &Value) -> Result<()> {
        let client = self.admin().await?;
        apply(&client, policy).await?;
        let name = &policy["metadata"]["name"];
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        });
        apply(&client, &binding).await?;
        until_policies_are_enforced(&client).await
    }

    /// Returns the operator's namespace, which the tests of a shared cluster share.
    pub(crate) async fn operator_namespace(self: &Arc<Self>) -> Result<Namespace> {
        Ok(Namespace {
            name: OPERATOR_NAMESPACE.to_owned(),
            client: self.admin().await?,
            cluster: Arc::clone(self),
        })
    }

    /// Creates a pod of the operator, with exactly the shipped rights. The name must be unique to
    /// the test.
    pub(crate) async fn operator_pod(self: &Arc<Self>, name: &str) -> Result<Pod> {
        let namespace = self.operator_namespace().await?;
        namespace.pod_with_rights(name, OPERATOR_ACCOUNT).await
    }

    /// Removes the operator's rights in all namespaces. It stays a candidate in its own namespace.
    pub(crate) async fn take_operators_rights(&self) -> Result<()> {
        Api::<ClusterRoleBinding>::all(self.admin().await?)
            .delete("leasehold-operator", &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Restores those rights.
    pub(crate) async fn give_operators_rights(&self) -> Result<()> {
        let file = repository(RBAC).join("operator.yaml");
        apply_file(&self.admin().await?, &file).await?;
        Ok(())
    }

    /// Allows the operator to label the pods of leaders, which is off by default.
    pub(crate) async fn allow_leader_labels(&self) -> Result<()> {
        let client = self.admin().await?;
        apply_file(&client, &repository(RBAC).join(LEADER_LABELS)).await?;
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": format!("system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_ACCOUNT}"),
                "resourceAttributes": {"verb": "patch", "resource": "pods"},
            },
        });
        eventually("the operator's right to patch pods", EFFECT, async || {
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let request = http::Request::post(path)
                .header("content-type", "application/json")
                .body(review.to_string().into_bytes())
                .ok()?;
            let answer: Value = client.request(request).await.ok()?;
            (answer["status"]["allowed"] == true).then_some(())
        })
        .await
    }
}

/// A namespace of one test.
pub(crate) struct Namespace {
    /// Its name.
    pub(crate) name: String,
    /// A client with the administrator's rights.
    pub(crate) client: Client,
    /// The cluster that it belongs to.
    pub(crate) cluster: Arc<Cluster>,
}

impl Namespace {
    /// Creates a service account without any rights.
    pub(crate) async fn service_account(&self, name: &str) -> Result<()> {
        let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<ServiceAccount>::namespaced(self.client.clone(), &self.name)
            .create(&PostParams::default(), &object)
            .await?;
        Ok(())
    }

    /// Binds a service account to the sidecar's role in this namespace.
    pub(crate) async fn bind_sidecar_role(&self, account: &str) -> Result<()> {
        let object = serde_json::from_value(json!({
            "metadata": {"name": format!("{account}-leasehold-sidecar")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": "leasehold-sidecar"},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.name}],
        }))?;
        let bindings = Api::<RoleBinding>::namespaced(self.client.clone(), &self.name);
        match bindings.create(&PostParams::default(), &object).await {
            // It is the same object: only this harness creates it.
            Err(kube::Error::Api(refused)) if refused.code == 409 => Ok(()),
            made => Ok(made.map(drop)?),
        }
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
    make_operators_account(client).await?;
    let other_mode = match mode {
        TakeOver::Strict => "take-over-peer.yaml",
        TakeOver::Peer => "take-over-strict.yaml",
    };
    for folder in [RBAC, "charts/leasehold/files/admission"] {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(repository(folder))? {
            files.push(entry?.path());
        }
        files.sort();
        files.retain(|file| !file.ends_with(other_mode) && !file.ends_with(LEADER_LABELS));
        for file in &files {
            apply_file(client, file).await?;
        }
    }
    until_policies_are_enforced(client).await
}

/// Creates the subject of the operator's role bindings, and the objects that its pods require.
async fn make_operators_account(client: &Client) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": OPERATOR_NAMESPACE}});
    apply(client, &namespace).await?;
    for account in ["default", OPERATOR_ACCOUNT] {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": account, "namespace": OPERATOR_NAMESPACE}});
        apply(client, &account).await?;
    }
    Ok(())
}
