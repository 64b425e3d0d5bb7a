//! Locks in the API server.

use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::future::ready;
use kube::Client;
use kube::api::WatchEvent;
use serde_json::{Value, json};

use super::calls::Calls;
use super::convert::{api_version, lock, name_of, page, written};
use super::errors::from_watch_status;
use super::names::object_name;
use crate::crd::DistributedLock;
use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
use crate::protocol::queue::Waiter;
use crate::protocol::token::Revision;
use crate::store::{LockAtRevision, LockEvent, LockStore, LockWatch, Page, StoreError, Stored};

/// The selectable field by which a session finds its own locks.
const HOLDER_SESSION: &str = "status.holder.session";

/// The `DistributedLock` objects of one namespace.
#[derive(Clone)]
pub struct K8sLockStore {
    calls: Calls,
}

impl K8sLockStore {
    /// Creates a store for the locks of `namespace`.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            calls: Calls::new::<DistributedLock>(client, namespace),
        }
    }

    /// Sets the timeout of each call (default: 5 seconds).
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
        let Some(object) = self.calls.get(&object_name(resource)).await? else {
            return Ok(None);
        };
        check_resource(lock::read(object)?, resource).map(Some)
    }

    async fn get_with_revision(&self, resource: &Resource) -> Result<LockAtRevision, StoreError> {
        let name = object_name(resource);
        let listed = self.calls.list_where("metadata.name", &name).await?;
        let page = page(listed, lock::read)?;
        if let Some(reason) = page.unreadable.into_iter().next() {
            return Err(StoreError::Unreadable(reason));
        }
        let found = page.items.into_iter().next();
        Ok(LockAtRevision {
            lock: found
                .map(|stored| check_resource(stored, resource))
                .transpose()?,
            revision: page.revision,
        })
    }

    async fn list_held_by(&self, session: &SessionId) -> Result<Page<Lock>, StoreError> {
        let listed = self.calls.list_where(HOLDER_SESSION, session.as_str());
        page(listed.await?, lock::read)
    }

    async fn watch(&self, session: &SessionId, after: Revision) -> Result<LockWatch, StoreError> {
        let events = self
            .calls
            .watch_where(HOLDER_SESSION, session.as_str(), after)
            .await?;
        Ok(events.filter_map(|event| ready(lock_event(event))).boxed())
    }

    async fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError> {
        page(self.calls.list(limit, next).await?, lock::read)
    }

    /// The API server drops the status of a new object, so acquiring a lock that does not exist
    /// takes two writes.
    async fn create(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError> {
        let object = new_object(self.calls.namespace(), resource);
        written(self.calls.create(&object).await?, lock::read)
    }

    /// The write carries the resourceVersion of `current`: of all writes based on one version, the
    /// API server accepts one.
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

    /// A waiter is appended by a patch without a resourceVersion, which the API server applies to
    /// the newest state. The CRD's rules check that the lock is held, that the queue has room, and
    /// that neither session nor grant is there twice. Two kinds of waiters are written by
    /// compare-and-swap. The position of a preferred waiter depends on the others. A lock that an
    /// older version or a person wrote may have no list to which a waiter could be appended.
    async fn join(
        &self,
        current: &Stored<Lock>,
        waiter: &Waiter,
    ) -> Result<Stored<Lock>, StoreError> {
        let joined = current.value.joined_by(waiter.clone());
        if waiter.preferred || (current.value.grant.is_some() && !lock::has_queue(current)?) {
            let joined = joined.ok_or_else(|| StoreError::of_refused_join(&current.value))?;
            return self.update(current, &joined).await;
        }
        let resource = &current.value.resource;
        let patch = lock::patch_to_join(current, waiter)?;
        match self
            .calls
            .patch_status(&object_name(resource), &patch)
            .await
        {
            // The rules have no error code of their own. A write on the version that was read is
            // rejected for good, or conflicts with another write.
            Err(StoreError::Invalid(_)) => match joined {
                Some(joined) => self.update(current, &joined).await,
                None => Err(StoreError::Conflict),
            },
            answer => written(answer?, lock::read),
        }
    }
}

/// Returns the lock if it guards this resource: names may collide, and a lock is never shared.
fn check_resource(stored: Stored<Lock>, resource: &Resource) -> Result<Stored<Lock>, StoreError> {
    if stored.value.resource == *resource {
        return Ok(stored);
    }
    Err(StoreError::Collision {
        name: object_name(resource),
        found: stored.value.resource.to_string(),
    })
}

/// Converts an event of the API server; `None` for an unreadable object, whose lock is read again
/// anyway.
fn lock_event(
    event: Result<WatchEvent<Value>, StoreError>,
) -> Option<Result<LockEvent, StoreError>> {
    match event {
        Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
            let stored = lock::read(object).inspect_err(log_unreadable).ok()?;
            Some(Ok(LockEvent::Held(Box::new(stored))))
        }
        // The event has the object *before* it ceased to match, with the version after.
        Ok(WatchEvent::Deleted(object)) => {
            let before = lock::read(object).inspect_err(log_unreadable).ok()?;
            Some(Ok(LockEvent::Gone {
                resource: before.value.resource,
                at: before.version,
            }))
        }
        Ok(WatchEvent::Bookmark(bookmark)) => {
            let revision = bookmark.metadata.resource_version.parse().ok()?;
            Some(Ok(LockEvent::Bookmark(Revision(revision))))
        }
        Ok(WatchEvent::Error(status)) => Some(Err(from_watch_status(&status))),
        Err(error) => Some(Err(error)),
    }
}

fn log_unreadable(error: &StoreError) {
    tracing::warn!(%error, "watched lock is unreadable");
}

fn new_object(namespace: &str, resource: &Resource) -> Value {
    json!({
        "apiVersion": api_version(),
        "kind": "DistributedLock",
        "metadata": {"name": object_name(resource), "namespace": namespace},
        "spec": {"resource": resource.as_str()},
    })
}
