//! The operator's port on a real API server: all locks and sessions, the pods that have ended, and the
//! nodes that are out of service.
//!
//! The feeds cost one event for each write of a lock and three for each session and TTL. Each pod
//! that reaches a terminal phase costs one. Nodes cost one for each change of their status.
//!
//! It does not cache what the feeds deliver. A write is the same compare-and-swap that an agent
//! makes: one request that is never repeated.

pub(super) mod feeds;
mod nodes;
mod pods;
mod raw;

use feeds::Reader;
pub(super) use feeds::changes;

use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Resource};
use serde_json::Value;

use super::calls::Calls;
use super::convert::{is_deleted, lock, page, session, set_at};
use super::lock_store::K8sLockStore;
use super::names::object_name;
use super::session_store::K8sSessionStore;
use crate::crd::{DistributedLock, LockSession};
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;
use crate::store::fleet::{
    Feed, FeedEvent, FleetStore, NodeReport, Object, ObjectRef, ObjectVersion, PodReport,
};
use crate::store::{LockStore as _, SessionStore as _, StoreError, Stored};

/// The `DistributedLock` and `LockSession` objects of all namespaces.
#[derive(Clone)]
pub struct K8sFleet {
    client: Client,
    timeout: Duration,
}

impl K8sFleet {
    /// Creates an adapter. Its feeds must be used inside one runtime.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self {
            client,
            timeout: Duration::from_secs(5),
        }
    }

    /// Sets the timeout of each call that is not a feed (default: 5 seconds).
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn calls<K: Resource<DynamicType = ()>>(&self, object_ref: &ObjectRef) -> Calls {
        Calls::new::<K>(self.client.clone(), &object_ref.namespace).with_timeout(self.timeout)
    }

    fn lock_store(&self, object_ref: &ObjectRef) -> K8sLockStore {
        K8sLockStore::new(self.client.clone(), &object_ref.namespace).with_timeout(self.timeout)
    }

    fn session_store(&self, object_ref: &ObjectRef) -> K8sSessionStore {
        K8sSessionStore::new(self.client.clone(), &object_ref.namespace).with_timeout(self.timeout)
    }

    async fn read<K: Resource<DynamicType = ()>, T>(
        &self,
        object_ref: &ObjectRef,
        read: fn(Value) -> Result<Stored<T>, StoreError>,
    ) -> Result<Option<Object<T>>, StoreError> {
        let Some(object) = self.calls::<K>(object_ref).get(&object_ref.name).await? else {
            return Ok(None);
        };
        let uid = object["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .into();
        Ok(Some(Object {
            object_ref: object_ref.clone(),
            uid,
            is_deleted: is_deleted(&object),
            is_misnamed: false,
            set_at: set_at(&object),
            stored: read(object)?,
        }))
    }
}

#[async_trait]
impl FleetStore for K8sFleet {
    fn locks(&self) -> Feed<Object<Lock>> {
        let reader = Reader {
            read: lock::read,
            read_free_lock: lock::read_free_lock,
        };
        let events = feeds::objects::<DistributedLock, _>(&self.client, reader);
        let events = events.map(|events| match events {
            FeedEvent::Applied(placed) => FeedEvent::Applied(Box::new(with_name_checked(*placed))),
            other => other,
        });
        events.boxed()
    }

    fn sessions(&self) -> Feed<Object<Session>> {
        let read: fn(Value) -> Result<Stored<Session>, StoreError> = session::read;
        feeds::objects::<LockSession, _>(&self.client, read.into())
    }

    fn ended_pods(&self) -> Feed<PodReport> {
        feeds::ended_pods(&self.client)
    }

    fn nodes(&self) -> Feed<NodeReport> {
        feeds::nodes(&self.client)
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        let calls = Calls::everywhere::<DistributedLock>(self.client.clone());
        let listed = calls.with_timeout(self.timeout).list(1, None).await?;
        Ok(page(listed, lock::read)?.revision)
    }

    async fn lock(&self, object_ref: &ObjectRef) -> Result<Option<Object<Lock>>, StoreError> {
        let found = self
            .read::<DistributedLock, _>(object_ref, lock::read)
            .await?;
        Ok(found.map(with_name_checked))
    }

    async fn session(&self, object_ref: &ObjectRef) -> Result<Option<Object<Session>>, StoreError> {
        self.read::<LockSession, _>(object_ref, session::read).await
    }

    async fn pod(&self, object_ref: &ObjectRef) -> Result<Option<PodReport>, StoreError> {
        let object = self.calls::<Pod>(object_ref).get(&object_ref.name).await?;
        object.map(pods::report_of_object).transpose()
    }

    /// The same compare-and-swap as the agents'.
    async fn update_lock(
        &self,
        current: &Object<Lock>,
        next: &Lock,
    ) -> Result<Object<Lock>, StoreError> {
        let store = self.lock_store(&current.object_ref);
        Ok(after_write(
            current,
            store.update(&current.stored, next).await?,
        ))
    }

    /// The same compare-and-swap as the agents': of a revocation and a renewal on one version only
    /// one succeeds.
    async fn update_session(
        &self,
        current: &Object<Session>,
        next: &Session,
    ) -> Result<Object<Session>, StoreError> {
        let store = self.session_store(&current.object_ref);
        Ok(after_write(
            current,
            store.update(&current.stored, next).await?,
        ))
    }

    async fn delete_lock(&self, current: &ObjectVersion) -> Result<(), StoreError> {
        let calls = self.calls::<DistributedLock>(&current.object_ref);
        calls
            .delete(&current.object_ref.name, &current.uid, current.version)
            .await
    }

    async fn delete_session(&self, current: &Object<Session>) -> Result<(), StoreError> {
        let calls = self.calls::<LockSession>(&current.object_ref);
        let version = current.stored.version;
        calls
            .delete(&current.object_ref.name, &current.uid, version)
            .await
    }
}

/// Agents use one object name for each resource; another object with that resource has no effect.
fn with_name_checked(lock: Object<Lock>) -> Object<Lock> {
    let is_misnamed = *lock.object_ref.name != *object_name(&lock.stored.value.resource);
    Object {
        is_misnamed,
        ..lock
    }
}

/// Returns the object after a write. A recreated object has another uid, and also another version
/// than was compared.
fn after_write<T>(current: &Object<T>, stored: Stored<T>) -> Object<T> {
    Object {
        object_ref: current.object_ref.clone(),
        uid: current.uid.clone(),
        is_deleted: current.is_deleted,
        is_misnamed: current.is_misnamed,
        set_at: current.set_at,
        stored,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::protocol::ids::Resource;

    #[test]
    fn lock_is_misnamed_under_any_name_but_that_of_its_resource() {
        let resource = "election:billing";
        let own = object_name(&Resource::parse(resource).unwrap());
        let other = format!("{}0", &own[..own.len() - 1]);
        for (name, expected) in [(own.as_str(), false), (&other, true), ("billing", true)] {
            let metadata = json!({"name": name, "namespace": "n", "resourceVersion": "7"});
            let object = json!({"metadata": metadata, "spec": {"resource": resource}});
            let placed = Object {
                object_ref: ObjectRef {
                    namespace: "n".into(),
                    name: name.into(),
                },
                uid: "u".into(),
                is_deleted: false,
                is_misnamed: false,
                set_at: None,
                stored: lock::read(object).unwrap(),
            };
            assert_eq!(with_name_checked(placed).is_misnamed, expected, "{name}");
        }
    }
}
