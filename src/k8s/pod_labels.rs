//! One label of pods, for Services that select the pod which leads.
//!
//! Only metadata is read. A write is a merge patch that names the pod's uid: the API server takes
//! it for a precondition, so a pod that was made anew under the same name does not get the label of
//! the one before.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::ListParams;
use serde_json::{Map, Value, json};

use super::calls::Calls;
use super::convert::place_of;
use crate::store::StoreError;
use crate::store::cluster::{PodIdentity, PodLabels};

/// What the label says where it is there.
const GIVEN: &str = "true";

/// The labels of the pods that `client` reaches.
#[derive(Clone)]
pub struct K8sPodLabels {
    client: Client,
    timeout: Duration,
}

impl K8sPodLabels {
    /// Those that `client` reaches.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self {
            client,
            timeout: Duration::from_secs(5),
        }
    }

    /// The same with another limit on each call (5 seconds unless it is set).
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn calls(&self, namespace: &str) -> Calls {
        Calls::new::<Pod>(self.client.clone(), namespace).with_timeout(self.timeout)
    }

    async fn write(&self, pod: &PodIdentity, key: &str, value: Value) -> Result<(), StoreError> {
        if pod.uid.is_empty() {
            // It would be no precondition.
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
    /// Those with another value are none: no Service that is meant selects them.
    async fn list_pods(&self, namespace: &str, key: &str) -> Result<Vec<PodIdentity>, StoreError> {
        let selected = ListParams::default().labels(&format!("{key}={GIVEN}"));
        let found = self.calls(namespace).metadata_of(selected).await?;
        let pods = found.iter().map(|metadata| PodIdentity {
            object_ref: place_of(metadata),
            uid: metadata["uid"].as_str().unwrap_or_default().into(),
        });
        Ok(pods.collect())
    }

    async fn add(&self, pod: &PodIdentity, key: &str) -> Result<(), StoreError> {
        self.write(pod, key, GIVEN.into()).await
    }

    async fn remove(&self, pod: &PodIdentity, key: &str) -> Result<(), StoreError> {
        self.write(pod, key, Value::Null).await
    }
}
