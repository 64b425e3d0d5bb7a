//! Labels of pods, for Services that select the leader's pod.
//!
//! Only metadata is read. A write is a merge patch with the pod's uid as a precondition. So a
//! recreated pod of the same name does not get the label of its predecessor.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::ListParams;
use serde_json::{Map, Value, json};

use super::calls::Calls;
use super::convert::object_ref;
use crate::store::StoreError;
use crate::store::cluster::{PodIdentity, PodLabels};

/// The value of the label.
const VALUE: &str = "true";

/// The labels of a cluster's pods.
#[derive(Clone)]
pub struct K8sPodLabels {
    client: Client,
    timeout: Duration,
}

impl K8sPodLabels {
    /// Creates an adapter.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self {
            client,
            timeout: Duration::from_secs(5),
        }
    }

    /// Sets the timeout of each call (default: 5 seconds).
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn calls(&self, namespace: &str) -> Calls {
        Calls::new::<Pod>(self.client.clone(), namespace).with_timeout(self.timeout)
    }

    async fn write(&self, pod: &PodIdentity, key: &str, value: Value) -> Result<(), StoreError> {
        if pod.uid.is_empty() {
            // An empty uid would not be a precondition.
            return Err(StoreError::Invalid(format!(
                "pod {} has no uid",
                pod.object_ref
            )));
        }
        let labels: Map<String, Value> = [(key.to_owned(), value)].into_iter().collect();
        let patch = json!({"metadata": {"uid": &*pod.uid, "labels": labels}});
        let calls = self.calls(&pod.object_ref.namespace);
        calls.merge(&pod.object_ref.name, &patch).await
    }
}

#[async_trait]
impl PodLabels for K8sPodLabels {
    /// Pods with another value do not count: the Services do not select them.
    async fn list_pods(&self, namespace: &str, key: &str) -> Result<Vec<PodIdentity>, StoreError> {
        let selected = ListParams::default().labels(&format!("{key}={VALUE}"));
        let found = self.calls(namespace).metadata_of(selected).await?;
        let pods = found.iter().map(|metadata| PodIdentity {
            object_ref: object_ref(metadata),
            uid: metadata["uid"].as_str().unwrap_or_default().into(),
        });
        Ok(pods.collect())
    }

    async fn add(&self, pod: &PodIdentity, key: &str) -> Result<(), StoreError> {
        self.write(pod, key, VALUE.into()).await
    }

    async fn remove(&self, pod: &PodIdentity, key: &str) -> Result<(), StoreError> {
        self.write(pod, key, Value::Null).await
    }
}
