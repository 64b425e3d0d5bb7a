//! Locks in the API server.

use std::time::Duration;

use async_trait::async_trait;
use kube::Client;
use serde_json::{Value, json};

use super::calls::Calls;
use super::convert::{api_version, lock, name_of, page, written};
use super::names::object_name;
use crate::crd::DistributedLock;
use crate::protocol::ids::Resource;
use crate::protocol::lock::Lock;
use crate::store::{LockStore, Page, StoreError, Stored};

/// The `DistributedLock` objects of one namespace.
#[derive(Clone)]
pub struct K8sLockStore {
    calls: Calls,
}

impl K8sLockStore {
    /// The locks of `namespace`.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            calls: Calls::new::<DistributedLock>(client, namespace),
        }
    }

    /// The same store with another limit on each call (5 seconds unless it is set).
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self {
            calls: self.calls.with_timeout(timeout),
        }
    }
}

#[async_trait]
impl LockStore for K8sLockStore {
    async fn get(&self, resource: &Resource) -> Result<Option<Stored<Lock>>, StoreError> {
        let name = object_name(resource);
        let Some(object) = self.calls.get(&name).await? else {
            return Ok(None);
        };
        let stored = lock::read(object)?;
        if stored.value.resource == *resource {
            return Ok(Some(stored));
        }
        Err(StoreError::Collision {
            name,
            found: stored.value.resource.to_string(),
        })
    }

    async fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError> {
        page(self.calls.list(limit, next).await?, lock::read)
    }

    /// The API server drops the status of an object that is made, so there is none to send: to
    /// take a lock that does not exist are two writes.
    async fn create(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError> {
        let object = new_object(self.calls.namespace(), resource);
        written(self.calls.create(&object).await?, lock::read)
    }

    /// The resourceVersion of `current` goes with the write: of all that were decided on one
    /// version, the API server lets one through.
    async fn update(
        &self,
        current: &Stored<Lock>,
        next: &Lock,
    ) -> Result<Stored<Lock>, StoreError> {
        let object = lock::write(current, next)?;
        written(
            self.calls.put_status(name_of(&object), &object).await?,
            lock::read,
        )
    }
}

fn new_object(namespace: &str, resource: &Resource) -> Value {
    json!({
        "apiVersion": api_version(),
        "kind": "DistributedLock",
        "metadata": {"name": object_name(resource), "namespace": namespace},
        "spec": {"resource": resource.as_str()},
    })
}
