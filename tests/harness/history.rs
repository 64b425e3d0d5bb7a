//! Every state of a lock object, as a watch delivers it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt as _;
use kube::api::WatchEvent;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::cluster::Namespace;
use super::wait::{PATIENCE, eventually};

/// How long the watch may lag behind.
const LAG: Duration = PATIENCE;

/// The states of one lock object from some time on: one for each write that changed it.
pub(crate) struct History {
    states: Arc<Mutex<Vec<Value>>>,
    watching: JoinHandle<()>,
}

impl Namespace {
    /// Follows a lock from its current state on, which is the first.
    pub(crate) async fn follow(&self, lock: &str) -> Result<History> {
        let now = self.lock(lock).await?.context("no such lock")?;
        let version = version_of(&now).to_owned();
        let path = format!(
            "/apis/leasehold.dev/v1alpha1/namespaces/{}/distributedlocks?watch=true\
             &fieldSelector=metadata.name%3D{lock}&resourceVersion={version}",
            self.name
        );
        let request = http::Request::get(path).body(vec![])?;
        let mut events = self.client.request_events::<Value>(request).await?.boxed();
        let states = Arc::new(Mutex::new(vec![now]));
        let seen = Arc::clone(&states);
        let watching = tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(state) | WatchEvent::Modified(state) = event {
                    seen.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(state);
                }
            }
        });
        Ok(History { states, watching })
    }

    /// Returns all states of the lock up to now.
    pub(crate) async fn up_to_now(&self, history: &History, lock: &str) -> Result<Vec<Value>> {
        let now = self.lock(lock).await?.context("no such lock")?;
        eventually("the watch to deliver the last write", LAG, async || {
            let states = history.states();
            let at = states
                .iter()
                .position(|state| version_of(state) == version_of(&now))?;
            Some(states[..=at].to_vec())
        })
        .await
    }
}

impl History {
    /// Returns the states so far.
    pub(crate) fn states(&self) -> Vec<Value> {
        let states = self.states.lock();
        states.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn version_of(object: &Value) -> &str {
    let version = &object["metadata"]["resourceVersion"];
    version.as_str().unwrap_or_default()
}
