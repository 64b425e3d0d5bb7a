//! The operator's ports on a real API server, with the operator's rights. No operator runs beside them: it would
//! write what the tests write.

mod candidates;
mod feeds;
mod labels;
mod notes;
mod outages;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt as _;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use leasehold::crd::{DistributedLock, LockSession};
use leasehold::k8s::{K8sFleet, connect};
use leasehold::store::fleet::{Feed, FeedEvent, Object, ObjectRef, PodReport};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::harness::{Cluster, Namespace, PATIENCE, Pod};

const LIMIT: Duration = PATIENCE;

/// A client with the operator's rights. `about` must be the test's own.
async fn operator(cluster: &Arc<Cluster>, about: &str) -> Result<kube::Client> {
    let pod = cluster
        .operator_pod(&format!("operator-of-{about}"))
        .await?;
    client_of(&pod).await
}

async fn client_of(pod: &Pod) -> Result<kube::Client> {
    Ok(connect(&pod.kubeconfig.config().await?)?)
}

async fn fleet(cluster: &Arc<Cluster>, about: &str) -> Result<K8sFleet> {
    Ok(K8sFleet::new(operator(cluster, about).await?))
}

fn place(namespace: &Namespace, name: &str) -> ObjectRef {
    ObjectRef {
        namespace: namespace.name.as_str().into(),
        name: name.into(),
    }
}

/// The object of a feed's event.
trait About {
    fn place(&self) -> &ObjectRef;
}

impl<T> About for Object<T> {
    fn place(&self) -> &ObjectRef {
        &self.object_ref
    }
}

impl About for PodReport {
    fn place(&self) -> &ObjectRef {
        &self.object_ref
    }
}

/// In one line, such as `there a/b`.
fn line<T: About>(told: &FeedEvent<T>) -> String {
    match told {
        FeedEvent::ListStarted => "anew".to_owned(),
        FeedEvent::Applied(object) => format!("there {}", object.place()),
        FeedEvent::Unreadable { object_ref, .. } => format!("unreadable {object_ref}"),
        FeedEvent::Deleted(place) => format!("gone {place}"),
        FeedEvent::ListDone => "complete".to_owned(),
        FeedEvent::Interrupted(_) => "interrupted".to_owned(),
    }
}

/// All events of a feed up to `last`, as lines.
async fn lines_until<T: About>(feed: &mut Feed<T>, last: &str) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let told = timeout(LIMIT, feed.next()).await;
        let told = told.with_context(|| format!("waited in vain for {last:?} after {lines:?}"))?;
        lines.push(line(&told.context("a feed never ends")?));
        if lines.last().is_some_and(|line| line == last) {
            return Ok(lines);
        }
    }
}

/// The next state that a feed tells of an object.
async fn next_of<T: About>(feed: &mut Feed<T>, place: &ObjectRef) -> Result<T> {
    loop {
        match timeout(LIMIT, feed.next())
            .await
            .with_context(|| format!("nothing of {place}"))?
        {
            Some(FeedEvent::Applied(object)) if object.place() == place => return Ok(*object),
            Some(_) => {}
            None => bail!("a feed never ends"),
        }
    }
}

/// A lock object, made by the administrator.
async fn make_lock(namespace: &Namespace, name: &str, resource: &str) -> Result<()> {
    let lock = json!({"metadata": {"name": name}, "spec": {"resource": resource}});
    let locks = Api::<DistributedLock>::namespaced(namespace.client.clone(), &namespace.name);
    locks
        .create(&PostParams::default(), &serde_json::from_value(lock)?)
        .await?;
    Ok(())
}

/// A session object, made by the administrator.
async fn make_session(namespace: &Namespace, name: &str) -> Result<()> {
    let session = json!({"metadata": {"name": name},
        "spec": {"pod": "p", "podUid": "u", "ttlSeconds": 15, "agentVersion": "0"}});
    let sessions = Api::<LockSession>::namespaced(namespace.client.clone(), &namespace.name);
    sessions
        .create(&PostParams::default(), &serde_json::from_value(session)?)
        .await?;
    Ok(())
}

/// The administrator writes a pod's status, as a kubelet would.
async fn report(pod: &Pod, namespace: &Namespace, status: &Value) -> Result<()> {
    let pods = Api::<k8s_openapi::api::core::v1::Pod>::namespaced(
        namespace.client.clone(),
        &namespace.name,
    );
    let patch = kube::api::Patch::Merge(json!({"status": status}));
    pods.patch_status(&pod.name, &kube::api::PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// A status whose only container ended.
fn succeeded() -> Value {
    let at = Timestamp::UNIX_EPOCH.to_string();
    json!({"phase": "Succeeded", "containerStatuses": [{"name": "app", "image": "app",
        "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": at,
            "finishedAt": at}}}]})
}
