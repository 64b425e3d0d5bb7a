//! Pods as API objects: no node runs them, but tokens are bound to them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod as PodObject, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::cluster::{Cluster, Namespace};
use super::kubectl::{Access, Kubeconfig, Output};
use super::relay::Relay;
use super::wait::{PATIENCE, eventually};

/// A pod, and its sidecar's access.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// Its name.
    pub(crate) name: String,
    /// Its uid.
    pub(crate) uid: String,
    /// Its namespace.
    pub(crate) namespace: String,
    /// A token bound to it.
    pub(crate) token: String,
    /// A kubeconfig with that token.
    pub(crate) kubeconfig: Kubeconfig,
}

impl Namespace {
    /// Creates a pod of the service account `app`, and waits until its rights are in effect.
    pub(crate) async fn pod(&self, name: &str) -> Result<Pod> {
        self.pod_with_rights(name, "app").await
    }

    /// Creates a pod of another service account with a sidecar's rights, and waits until they are
    /// in effect.
    pub(crate) async fn pod_with_rights(&self, name: &str, account: &str) -> Result<Pod> {
        let pod = self.pod_of(name, account).await?;
        pod.until_it_may_make_locks().await?;
        Ok(pod)
    }

    /// Creates a pod of another service account.
    pub(crate) async fn pod_of(&self, name: &str, account: &str) -> Result<Pod> {
        let object = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"serviceAccountName": account,
                "containers": [{"name": "app", "image": "app"}]},
        }))?;
        let api = Api::<PodObject>::namespaced(self.client.clone(), &self.name);
        let created = api.create(&PostParams::default(), &object).await?;
        let uid = created.metadata.uid.context("an object must have a uid")?;
        let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid});
        let token = self.token(account, Some(bound)).await?;
        let kubeconfig = self.kubeconfig(name, &token)?;
        Ok(Pod {
            name: name.to_owned(),
            uid,
            namespace: self.name.clone(),
            token,
            kubeconfig,
        })
    }

    /// Requests a token of a service account, bound to an object or unbound.
    pub(crate) async fn token(&self, account: &str, bound: Option<Value>) -> Result<String> {
        let request: TokenRequest = serde_json::from_value(json!({
            "spec": {"audiences": [], "boundObjectRef": bound},
        }))?;
        let api = Api::<ServiceAccount>::namespaced(self.client.clone(), &self.name);
        let answer = api
            .create_token_request(account, &PostParams::default(), &request)
            .await?;
        Ok(answer
            .status
            .context("a token request must be answered with a token")?
            .token)
    }

    /// Writes a kubeconfig for any token, in this namespace.
    pub(crate) fn kubeconfig(&self, name: &str, token: &str) -> Result<Kubeconfig> {
        let control_plane = self.cluster.control_plane();
        let access = Access {
            server: &control_plane.server(),
            certificate: Some(&control_plane.certificate()),
            token,
            namespace: &self.name,
        };
        let path = self.file(&format!("{name}.kubeconfig"));
        Kubeconfig::write(path, &control_plane.admin().kubectl, &access)
    }

    fn file(&self, name: &str) -> PathBuf {
        let directory = self.cluster.control_plane().directory();
        directory.join(format!("{}-{name}", self.name))
    }
}

impl Pod {
    /// Returns a client with this pod's rights.
    pub(crate) async fn client(&self) -> Result<Client> {
        self.kubeconfig.client().await
    }

    /// Runs kubectl with this pod's rights.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<Output> {
        self.kubeconfig.kubectl(args).await
    }

    /// Returns the same pod, which reaches the API server through a plain-HTTP proxy at `server`.
    pub(crate) fn through(&self, server: &str) -> Result<Self> {
        self.by_way_of(server, None)
    }

    /// Returns the same pod, which reaches the API server through a relay without a certificate of
    /// its own.
    pub(crate) fn over(&self, relay: &Relay, cluster: &Cluster) -> Result<Self> {
        let certificate = cluster.control_plane().certificate();
        self.by_way_of(&relay.url, Some(&certificate))
    }

    fn by_way_of(&self, server: &str, certificate: Option<&Path>) -> Result<Self> {
        let access = Access {
            server,
            certificate,
            token: &self.token,
            namespace: &self.namespace,
        };
        let path = self.kubeconfig.path.with_extension("proxied");
        let kubeconfig = Kubeconfig::write(path, &self.kubeconfig.kubectl, &access)?;
        Ok(Self {
            kubeconfig,
            ..self.clone()
        })
    }

    /// Returns whether it may do this to our kinds in its namespace.
    pub(crate) async fn may(&self, verb: &str, resource: &str) -> Result<bool> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"namespace": self.namespace, "verb": verb,
                "group": "leasehold.dev", "resource": resource}},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(review.to_string().into_bytes())?;
        let answer: Value = self.client().await?.request(request).await?;
        Ok(answer["status"]["allowed"] == true)
    }

    /// A role binding takes effect a moment after its creation.
    async fn until_it_may_make_locks(&self) -> Result<()> {
        let what = format!("the right of pod {} to make locks", self.name);
        eventually(&what, PATIENCE, async || {
            let may = self.may("create", "distributedlocks").await.ok()?;
            may.then_some(())
        })
        .await
    }
}
