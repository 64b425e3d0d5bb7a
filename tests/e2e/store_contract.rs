//! The contract of the ports on the `k8s` adapter and a real API server, with pods' own rights.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leasehold::crd::DistributedLock;
use leasehold::k8s::names::object_name;
use leasehold::k8s::{K8sLockStore, K8sSessionStore};
use leasehold::protocol::ids::Resource;
use serde_json::{Value, json};

use crate::contract::{Adapter, Newer, Part, Party};
use crate::harness::{Cluster, Namespace, Pod, TakeOver, eventually};

/// A namespace with two pods.
struct ApiServer {
    namespace: Namespace,
    a: Party,
    b: Party,
}

impl ApiServer {
    async fn shared() -> Self {
        let cluster = Cluster::shared(TakeOver::Peer).await.expect("a cluster");
        Self::new(&cluster).await
    }

    /// On a cluster of its own: a definition that changes ends the watches of others.
    async fn open_to_newer_versions() -> Self {
        let cluster = Cluster::fresh(TakeOver::Peer).await.expect("a cluster");
        let adapter = Self::new(&cluster).await;
        open_up_the_definition(&adapter.namespace.client).await;
        adapter
    }

    async fn new(cluster: &Arc<Cluster>) -> Self {
        let namespace = cluster.namespace("contract").await.expect("a namespace");
        let [a, b] = ["a", "b"].map(async |name| {
            let pod = namespace.pod(name).await.expect("a pod");
            party(&pod, &namespace)
        });
        let (a, b) = (a.await, b.await);
        Self { namespace, a, b }
    }

    fn locks(&self) -> Api<DistributedLock> {
        Api::namespaced(self.namespace.client.clone(), &self.namespace.name)
    }

    /// The status as it is stored, with all its fields.
    async fn status(&self, resource: &Resource) -> Value {
        let path = format!(
            "/apis/leasehold.dev/v1alpha1/namespaces/{}/distributedlocks/{}",
            self.namespace.name,
            object_name(resource)
        );
        let request = http::Request::get(path).body(Vec::new());
        let request = request.expect("a request");
        let object: Value = self.namespace.client.request(request).await.expect("JSON");
        object["status"].clone()
    }
}

/// A pod that writes with a person's rights: the contract is the store's, and its queues have more entries
/// of one pod than the admission policies allow.
fn party(pod: &Pod, namespace: &Namespace) -> Party {
    let client = namespace.client.clone();
    let locks = K8sLockStore::new(client.clone(), &pod.namespace);
    let sessions = K8sSessionStore::new(client, &pod.namespace);
    Party::new(&pod.name, &pod.uid, Arc::new(locks), Arc::new(sessions))
}

impl Adapter for ApiServer {
    fn a(&self) -> &Party {
        &self.a
    }

    fn b(&self) -> &Party {
        &self.b
    }

    async fn delete_lock(&self, resource: &Resource) {
        let params = DeleteParams::default();
        let deleted = self.locks().delete(&object_name(resource), &params).await;
        deleted.expect("a deletion");
    }

    /// The policies allow it to no client, unless the namespace is terminating.
    async fn delete_held_lock(&self, resource: &Resource) {
        let namespaces = Api::<NamespaceObject>::all(self.namespace.client.clone());
        let (name, params) = (object_name(resource), DeleteParams::default());
        let going = namespaces.delete(&self.namespace.name, &params).await;
        going.expect("a namespace that is going");
        // The policies see it a moment later.
        let limit = Duration::from_secs(30);
        let deleted = eventually("a deletion to be allowed", limit, async || {
            self.locks().delete(&name, &params).await.ok().map(|_| ())
        });
        deleted.await.expect("a deletion");
    }
}

impl Newer for ApiServer {
    async fn add_unknown_fields(&self, resource: &Resource) {
        let mut waiters = self.status(resource).await["waiters"].clone();
        waiters[0]["new"] = json!(1);
        let incident = json!({"at": "2026-01-01T00:00:00Z", "kind": "Newer", "token": 1,
            "ownerId": "o", "pod": "p", "actor": "x", "reason": "y", "new": 1});
        let patch = json!({"status": {"new": 1, "holder": {"new": 1}, "lease": {"new": 1},
            "waiters": waiters, "incidents": [incident]}});
        // A definition that was changed takes effect a moment later.
        let limit = Duration::from_secs(30);
        let kept = eventually("unknown fields to be kept", limit, async || {
            let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
            let name = object_name(resource);
            let patched = self.locks().patch_status(&name, &params, &patch).await;
            patched.expect("a write");
            (self.status(resource).await["new"] == 1).then_some(())
        });
        kept.await.expect("unknown fields");
    }

    async fn part(&self, resource: &Resource, part: Part) -> Value {
        let status = self.status(resource).await;
        match part {
            Part::Lock => status,
            Part::Holder => status["holder"].clone(),
            Part::Grant => status["lease"].clone(),
            Part::Waiter => status["waiters"][0].clone(),
            Part::Incidents => status["incidents"].clone(),
        }
    }
}

/// Lets every object of the definition carry fields that it does not name, as if a newer version
/// had brought them.
fn open_up(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("properties").is_some() {
                map.insert(
                    "x-kubernetes-preserve-unknown-fields".to_owned(),
                    json!(true),
                );
            }
            map.values_mut().for_each(open_up);
        }
        Value::Array(list) => list.iter_mut().for_each(open_up),
        _ => {}
    }
}

async fn open_up_the_definition(admin: &Client) {
    let definitions = Api::<CustomResourceDefinition>::all(admin.clone());
    let name = "distributedlocks.leasehold.dev";
    let definition = definitions.get(name).await.expect("a definition");
    let mut definition = serde_json::to_value(definition).expect("JSON");
    open_up(&mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]);
    let definition = serde_json::from_value(definition).expect("a definition");
    definitions
        .replace(name, &PostParams::default(), &definition)
        .await
        .expect("a new definition");
}

crate::contract::every_fact!(ApiServer::shared().await);
crate::contract::every_fact!(
    ApiServer::open_to_newer_versions().await;
    fields_of_a_newer_version_survive_every_write,
    fields_of_a_newer_version_survive_a_join,
);
