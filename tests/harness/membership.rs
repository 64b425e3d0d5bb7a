//! The members of a set, after each change that a watch delivered: pods with a label, addresses of
//! a Service.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use kube::api::WatchEvent;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::cluster::Namespace;

/// The members after each change that a watch delivered.
pub(crate) struct Membership {
    states: Arc<Mutex<Vec<Vec<String>>>>,
    watching: JoinHandle<()>,
}

impl Membership {
    /// Follows from now on. `members` returns the members that an object contributes.
    pub(crate) async fn follow(
        namespace: &Namespace,
        path: &str,
        members: fn(&Value) -> Vec<String>,
    ) -> Result<Self> {
        let request = http::Request::get(path).body(vec![])?;
        let events = namespace.client.request_events::<Value>(request).await?;
        let states = Arc::new(Mutex::new(vec![vec![]]));
        let seen = Arc::clone(&states);
        let watching = tokio::spawn(async move {
            let mut events = events.boxed();
            let mut by_object = BTreeMap::new();
            while let Some(Ok(event)) = events.next().await {
                match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        by_object.insert(object["metadata"]["name"].to_string(), members(&object));
                    }
                    WatchEvent::Deleted(object) => {
                        by_object.remove(&object["metadata"]["name"].to_string());
                    }
                    WatchEvent::Bookmark(_) | WatchEvent::Error(_) => {}
                }
                let state: Vec<String> = by_object.values().flatten().cloned().collect();
                let mut states = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if states.last() != Some(&state) {
                    states.push(state);
                }
            }
        });
        Ok(Self { states, watching })
    }

    /// Follows the pods behind a Service, by its `EndpointSlice`s.
    pub(crate) async fn of_service(namespace: &Namespace, service: &str) -> Result<Self> {
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?watch=true\
             &labelSelector=kubernetes.io%2Fservice-name%3D{service}",
            namespace.name
        );
        Self::follow(namespace, &path, endpoints).await
    }

    pub(crate) fn states(&self) -> Vec<Vec<String>> {
        let states = self.states.lock();
        states.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether this pod is the only member, as far as the watch has delivered.
    pub(crate) fn is_only(&self, pod: &str) -> bool {
        let states = self.states();
        states
            .last()
            .is_some_and(|state| state == &[pod.to_owned()])
    }

    /// Returns all observed sets, and asserts that none has two members.
    pub(crate) fn checked(&self) -> Result<Vec<Vec<String>>> {
        ensure!(!self.watching.is_finished(), "the watch must still be open");
        let states = self.states();
        ensure!(states.iter().all(|state| state.len() <= 1), "{states:?}");
        Ok(states)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Returns the pods behind the addresses in a slice.
fn endpoints(slice: &Value) -> Vec<String> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    let pods = endpoints.map(|one| one["targetRef"]["name"].as_str().unwrap_or_default());
    pods.map(str::to_owned).collect()
}
