//! The clients of the tests: pods with bound tokens, a token without a pod, the operator, and users.

use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harness::{
    Cluster, Namespace, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, PATIENCE, TakeOver, eventually,
};
use crate::support::complete;

/// A namespace of a test's own.
pub(super) struct World {
    /// A client with the administrator's rights.
    pub(super) admin: Client,
    namespace: Namespace,
}

/// A client that writes: a pod, or a user (without a uid).
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) client: Client,
}

impl World {
    /// In strict mode with an operator, as it is to be run.
    pub(super) async fn new(mode: TakeOver) -> Self {
        Self::on(complete(mode).await.expect("a cluster")).await
    }

    /// Without an operator, for tests that do its work, or request it.
    pub(super) async fn without_operator(mode: TakeOver) -> Self {
        Self::on(Cluster::shared(mode).await.expect("a cluster")).await
    }

    async fn on(cluster: Arc<Cluster>) -> Self {
        let namespace = cluster.namespace("policies").await.expect("a namespace");
        Self {
            admin: namespace.client.clone(),
            namespace,
        }
    }

    /// A pod of the `ServiceAccount` named app, with the sidecar's role.
    pub(super) async fn pod(&self, name: &str) -> User {
        let pod = self.namespace.pod(name).await.expect("a pod");
        let client = pod.client().await.expect("a client");
        User {
            name: pod.name,
            uid: pod.uid,
            client,
        }
    }

    /// Several pods.
    pub(super) async fn pods<const N: usize>(&self, names: [&str; N]) -> [User; N] {
        let made = names.map(|name| self.pod(name));
        let made = futures::future::join_all(made).await;
        made.try_into().ok().expect("a pod for each name")
    }

    /// The same `ServiceAccount` by a token that is bound to nothing.
    pub(super) async fn unbound(&self) -> Client {
        let token = self.namespace.token("app", None).await.expect("a token");
        let kubeconfig = self
            .namespace
            .kubeconfig("unbound", &token)
            .expect("a kubeconfig");
        kubeconfig.client().await.expect("a client")
    }

    /// The operator, with every right in this namespace: so only the policies restrict it here.
    pub(super) async fn operator(&self) -> Client {
        self.widened_operator(self.bare_operator().await).await
    }

    /// Gives the operator every right in this namespace.
    pub(super) async fn widened_operator(&self, operator: Client) -> Client {
        let account = json!({"kind": "ServiceAccount", "name": OPERATOR_ACCOUNT,
            "namespace": OPERATOR_NAMESPACE});
        self.bind("ClusterRole", "cluster-admin", account).await;
        self.until_allowed(&operator, "update").await;
        operator
    }

    /// The operator with the rights that we ship.
    pub(super) async fn bare_operator(&self) -> Client {
        let name = format!("operator-of-{}", self.namespace.name);
        let pod = self.namespace.cluster.operator_pod(&name).await;
        let pod = pod.expect("a pod");
        pod.client().await.expect("a client")
    }

    /// Lets all pods of the `ServiceAccount` named app change locks here.
    pub(super) async fn let_pods_edit_locks(&self) {
        self.make_role("editing-pods", &["get", "patch", "update"])
            .await;
        let account = json!({"kind": "ServiceAccount", "name": "app"});
        self.bind("Role", "editing-pods", account).await;
    }

    /// A person with a role that we ship.
    pub(super) async fn person_in_role(&self, name: &str, role: &str) -> User {
        let person = json!({"kind": "User", "name": name});
        self.bind("ClusterRole", role, person).await;
        self.person_with(name, &["get"]).await
    }

    async fn person_with(&self, name: &str, verbs: &[&str]) -> User {
        let admin = &self.namespace.cluster.control_plane().admin().path;
        let mut file = Kubeconfig::read_from(admin).expect("a kubeconfig");
        for user in &mut file.auth_infos {
            user.auth_info.get_or_insert_default().impersonate = Some(name.to_owned());
        }
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(file, &options)
            .await
            .expect("a config");
        let client = Client::try_from(config).expect("a client");
        for verb in verbs {
            self.until_allowed(&client, verb).await;
        }
        User {
            name: name.to_owned(),
            uid: String::new(),
            client,
        }
    }

    /// A role on the locks of this namespace.
    async fn make_role(&self, name: &str, verbs: &[&str]) {
        let role = json!({
            "metadata": {"name": name},
            "rules": [{"apiGroups": ["leasehold.dev"], "resources": ["distributedlocks"],
                "verbs": verbs}],
        });
        made(&self.api::<Role>(&self.admin), role).await;
    }

    /// Gives a client a role in this namespace.
    async fn bind(&self, kind: &str, role: &str, subject: Value) {
        let binding = json!({
            "metadata": {"generateName": "of-the-test-"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [subject],
        });
        made(&self.api::<RoleBinding>(&self.admin), binding).await;
    }

    /// The namespace's name.
    pub(super) fn name(&self) -> &str {
        &self.namespace.name
    }

    /// Runs a command line as the administrator types it.
    pub(super) async fn shell(&self, command: &str) {
        let admin = self.namespace.cluster.control_plane().admin();
        let done = tokio::process::Command::new("/bin/sh")
            .args(["-ec", command])
            .env("KUBECONFIG", &admin.path)
            .env("PATH", admin.kubectl.parent().expect("a folder"))
            .output()
            .await
            .expect("a shell");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{command}: {said}");
    }

    /// Begins to delete the namespace. No controller empties it here, so it stays.
    pub(super) async fn terminate(&self) {
        let namespaces = Api::<NamespaceObject>::all(self.admin.clone());
        namespaces
            .delete(&self.namespace.name, &DeleteParams::default())
            .await
            .expect("a deletion");
    }

    /// A kind of object in this namespace, with the rights of a client.
    pub(super) fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(client.clone(), &self.namespace.name)
    }

    /// A role binding takes effect a moment after it was made.
    async fn until_allowed(&self, client: &Client, verb: &str) {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": self.namespace.name, "verb": verb,
                "group": "leasehold.dev", "resource": "distributedlocks"}},
        });
        let what = format!("the verb {verb} to be allowed");
        let allowed = eventually(&what, PATIENCE, async || {
            let request =
                http::Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
                    .header("content-type", "application/json")
                    .body(review.to_string().into_bytes())
                    .ok()?;
            let answer: Value = client.request(request).await.ok()?;
            (answer["status"]["allowed"] == true).then_some(())
        });
        allowed.await.expect("the right that was given");
    }
}

async fn made<K>(api: &Api<K>, object: Value)
where
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).expect("an object of that kind");
    api.create(&PostParams::default(), &object)
        .await
        .expect("an object that is new");
}
