//! The operator's port on a real API server: all locks and sessions, and the pods that ended.
//!
//! It keeps nothing of what it tells: who listens does. A write is the same compare-and-swap that
//! an agent makes, one request that is never repeated.

pub(super) mod feeds;
mod pods;
mod raw;

pub(super) use feeds::changes;

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::{Client, Resource};
use serde_json::Value;

use super::calls::Calls;
use super::convert::{is_deleted, lock, page, session};
use super::lock_store::K8sLockStore;
use super::session_store::K8sSessionStore;
use crate::crd::{DistributedLock, LockSession};
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;
use crate::store::fleet::{Feed, FleetStore, Place, Placed, PodReport};
use crate::store::{LockStore as _, SessionStore as _, StoreError, Stored};

/// The `DistributedLock` and `LockSession` objects of all namespaces.
#[derive(Clone)]
pub struct K8sFleet {
    client: Client,
    timeout: Duration,
}

impl K8sFleet {
    /// Those that `client` reaches. What it makes is to be used inside one runtime.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self {
            client,
            timeout: Duration::from_secs(5),
        }
    }

    /// The same fleet with another limit on each call that is no feed (5 seconds unless it is
    /// set).
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    fn calls<K: Resource<DynamicType = ()>>(&self, place: &Place) -> Calls {
        Calls::new::<K>(self.client.clone(), &place.namespace).with_timeout(self.timeout)
    }

    fn lock_store(&self, place: &Place) -> K8sLockStore {
        K8sLockStore::new(self.client.clone(), &place.namespace).with_timeout(self.timeout)
    }

    fn session_store(&self, place: &Place) -> K8sSessionStore {
        K8sSessionStore::new(self.client.clone(), &place.namespace).with_timeout(self.timeout)
    }

    async fn read<K: Resource<DynamicType = ()>, T>(
        &self,
        place: &Place,
        read: fn(Value) -> Result<Stored<T>, StoreError>,
    ) -> Result<Option<Placed<T>>, StoreError> {
        let Some(object) = self.calls::<K>(place).get(&place.name).await? else {
            return Ok(None);
        };
        let uid = object["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .into();
        Ok(Some(Placed {
            place: place.clone(),
            uid,
            is_deleted: is_deleted(&object),
            stored: read(object)?,
        }))
    }
}

#[async_trait]
impl FleetStore for K8sFleet {
    fn locks(&self) -> Feed<Placed<Lock>> {
        feeds::objects::<DistributedLock, _>(&self.client, lock::read)
    }

    fn sessions(&self) -> Feed<Placed<Session>> {
        feeds::objects::<LockSession, _>(&self.client, session::read)
    }

    fn ended_pods(&self) -> Feed<PodReport> {
        feeds::ended_pods(&self.client)
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        let calls = Calls::everywhere::<DistributedLock>(self.client.clone());
        let listed = calls.with_timeout(self.timeout).list(1, None).await?;
        Ok(page(listed, lock::read)?.revision)
    }

    async fn lock(&self, place: &Place) -> Result<Option<Placed<Lock>>, StoreError> {
        self.read::<DistributedLock, _>(place, lock::read).await
    }

    async fn session(&self, place: &Place) -> Result<Option<Placed<Session>>, StoreError> {
        self.read::<LockSession, _>(place, session::read).await
    }

    async fn pod(&self, place: &Place) -> Result<Option<PodReport>, StoreError> {
        let object = self.calls::<Pod>(place).get(&place.name).await?;
        object.map(pods::report_of_object).transpose()
    }

    /// The agents' own compare-and-swap.
    async fn update_lock(
        &self,
        current: &Placed<Lock>,
        next: &Lock,
    ) -> Result<Placed<Lock>, StoreError> {
        let store = self.lock_store(&current.place);
        Ok(moved_on(
            current,
            store.update(&current.stored, next).await?,
        ))
    }

    /// The agents' own compare-and-swap: a revocation and a renewal that were decided on one
    /// version cannot both succeed.
    async fn update_session(
        &self,
        current: &Placed<Session>,
        next: &Session,
    ) -> Result<Placed<Session>, StoreError> {
        let store = self.session_store(&current.place);
        Ok(moved_on(
            current,
            store.update(&current.stored, next).await?,
        ))
    }

    async fn delete_lock(&self, current: &Placed<Lock>) -> Result<(), StoreError> {
        let calls = self.calls::<DistributedLock>(&current.place);
        let version = current.stored.version;
        calls
            .delete(&current.place.name, &current.uid, version)
            .await
    }

    async fn delete_session(&self, current: &Placed<Session>) -> Result<(), StoreError> {
        let calls = self.calls::<LockSession>(&current.place);
        let version = current.stored.version;
        calls
            .delete(&current.place.name, &current.uid, version)
            .await
    }
}

/// The same object after a write: only one made anew has another uid, and that one has another
/// version than was compared with.
fn moved_on<T>(current: &Placed<T>, stored: Stored<T>) -> Placed<T> {
    Placed {
        place: current.place.clone(),
        uid: current.uid.clone(),
        is_deleted: current.is_deleted,
        stored,
    }
}
