//! The operator's port on the embedded store: feeds of its locks and sessions, and reports of pods.
//!
//! For the simulation, in which the operator runs on the store of the agents; shipped code does not
//! use it. The store has no pods: a simulation reports them through `test_support`.
//!
//! Invariant: no write happens between a feed's list and its first change.

mod pods;
mod subscribers;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream;

pub(super) use self::pods::Pods;
pub(super) use self::subscribers::Subscribers;
use super::record::SessionRecord;
use super::tables::{SESSIONS, Versioned};
use super::{EmbeddedStore, Identity, Inner, stored_session};
use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;
use crate::store::fleet::{
    Feed, FeedEvent, FleetStore, Object, ObjectRef, ObjectVersion, PodReport,
};
use crate::store::{LockStore, SessionStore, StoreError, Stored};

/// The only namespace.
pub const NAMESPACE: &str = "embedded";
/// The pause before a feed that failed to open is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// The uid of an object, as the adapter carries it. Objects in a file have none.
pub(super) struct Uid(pub(super) Option<Arc<str>>);

/// Returns the reference to an object of this name.
pub(super) fn object_ref(name: &str) -> ObjectRef {
    ObjectRef {
        namespace: NAMESPACE.into(),
        name: name.into(),
    }
}

fn uid_of<T>(stored: &Stored<T>) -> Arc<str> {
    let uid = stored.original.get::<Uid>().and_then(|uid| uid.0.clone());
    uid.unwrap_or_else(|| "".into())
}

/// Converts a stored object.
pub(super) fn to_object<T>(name: &str, stored: Stored<T>) -> Object<T> {
    Object {
        object_ref: object_ref(name),
        uid: uid_of(&stored),
        // No object here has finalizers.
        is_deleted: false,
        is_misnamed: false,
        set_at: None,
        stored,
    }
}

/// Returns the event after a write; `stored` is `None` after a delete.
pub(super) fn change_event<T>(name: &str, stored: Option<Stored<T>>) -> FeedEvent<Object<T>> {
    match stored {
        Some(stored) => FeedEvent::Applied(Box::new(to_object(name, stored))),
        None => FeedEvent::Deleted(object_ref(name)),
    }
}

fn list_event<T>(name: &str, stored: Result<Stored<T>, StoreError>) -> FeedEvent<Object<T>> {
    match stored {
        Ok(stored) => change_event(name, Some(stored)),
        Err(error) => FeedEvent::Unreadable {
            object_ref: object_ref(name),
            uid: "".into(),
            why: error.to_string(),
            free: None,
        },
    }
}

/// Returns a feed that lists everything, and then delivers the changes.
fn list_then_watch<T: Send + 'static>(there: Vec<FeedEvent<T>>, changes: Feed<T>) -> Feed<T> {
    let there = stream::iter(there);
    let begin = stream::iter([FeedEvent::ListStarted]).chain(there);
    let begin = begin.chain(stream::iter([FeedEvent::ListDone]));
    begin.chain(changes).boxed()
}

fn interrupted<T: Send + 'static>(error: StoreError) -> Feed<T> {
    let pause = stream::once(tokio::time::sleep(PAUSE)).filter_map(|()| async { None });
    stream::iter([FeedEvent::Interrupted(error)])
        .chain(pause)
        .boxed()
}

impl Inner {
    fn lock_feed(&self) -> Result<Feed<Object<Lock>>, StoreError> {
        let mut history = self.history();
        let mut there = Vec::new();
        self.snapshot()?.walk_locks(None, |name, lock| {
            there.push(list_event(name, lock));
            true
        })?;
        Ok(list_then_watch(there, history.lock_subscribers.subscribe()))
    }

    fn session_feed(&self) -> Result<Feed<Object<Session>>, StoreError> {
        let mut history = self.history();
        let mut there = Vec::new();
        let each = |name: &str, found: Result<Versioned<SessionRecord>, StoreError>| {
            there.push(list_event(name, found.map(|found| stored_session(&found))));
            true
        };
        self.snapshot()?.walk(SESSIONS, None, each)?;
        Ok(list_then_watch(
            there,
            history.session_subscribers.subscribe(),
        ))
    }
}

impl EmbeddedStore {
    /// Returns a feed that lists again whenever it ends, because it fell behind or a backup was
    /// restored.
    fn feed<T: Send + 'static>(&self, begin: fn(&Inner) -> Result<Feed<T>, StoreError>) -> Feed<T> {
        let feeds = stream::unfold(self.clone(), move |store| async move {
            let feed = store.read(begin).await.unwrap_or_else(interrupted);
            Some((feed, store))
        });
        feeds.flatten().boxed()
    }
}

fn is_here(object_ref: &ObjectRef) -> bool {
    &*object_ref.namespace == NAMESPACE
}

fn check_here(object_ref: &ObjectRef) -> Result<(), StoreError> {
    let found = is_here(object_ref).then_some(());
    found.ok_or_else(|| StoreError::NotFound(object_ref.to_string()))
}

/// Checks that the object has this uid and version.
fn check_precondition(current: &ObjectVersion, there: &Identity) -> Result<(), StoreError> {
    let uid = there.uid.as_deref().unwrap_or_default();
    let is_same = uid == &*current.uid && there.version == current.version;
    is_same.then_some(()).ok_or(StoreError::Conflict)
}

#[async_trait]
impl FleetStore for EmbeddedStore {
    fn locks(&self) -> Feed<Object<Lock>> {
        self.feed(Inner::lock_feed)
    }

    fn sessions(&self) -> Feed<Object<Session>> {
        self.feed(Inner::session_feed)
    }

    fn ended_pods(&self) -> Feed<PodReport> {
        self.feed(|inner| Ok(inner.pods().feed()))
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.read(|inner| inner.snapshot()?.revision()).await
    }

    async fn lock(&self, object_ref: &ObjectRef) -> Result<Option<Object<Lock>>, StoreError> {
        // No lock has an invalid name.
        let resource = Resource::parse(&object_ref.name).ok();
        let Some(resource) = resource.filter(|_| is_here(object_ref)) else {
            return Ok(None);
        };
        let found = LockStore::get(self, &resource).await?;
        Ok(found.map(|stored| to_object(&object_ref.name, stored)))
    }

    async fn session(&self, object_ref: &ObjectRef) -> Result<Option<Object<Session>>, StoreError> {
        if !is_here(object_ref) {
            return Ok(None);
        }
        let found = SessionStore::get(self, &SessionId::from(&*object_ref.name)).await?;
        Ok(found.map(|stored| to_object(&object_ref.name, stored)))
    }

    async fn pod(&self, object_ref: &ObjectRef) -> Result<Option<PodReport>, StoreError> {
        let object_ref = object_ref.clone();
        self.read(move |inner| Ok(inner.pods().report_of(&object_ref)))
            .await
    }

    /// The same compare-and-swap as the agents'. It keeps the settings of users.
    async fn update_lock(
        &self,
        current: &Object<Lock>,
        next: &Lock,
    ) -> Result<Object<Lock>, StoreError> {
        check_here(&current.object_ref)?;
        let written = LockStore::update(self, &current.stored, next).await?;
        Ok(to_object(&current.object_ref.name, written))
    }

    /// The same compare-and-swap as the agents': of a revocation and a renewal on one version only
    /// one succeeds.
    async fn update_session(
        &self,
        current: &Object<Session>,
        next: &Session,
    ) -> Result<Object<Session>, StoreError> {
        check_here(&current.object_ref)?;
        let written = SessionStore::update(self, &current.stored, next).await?;
        Ok(to_object(&current.object_ref.name, written))
    }

    async fn delete_lock(&self, current: &ObjectVersion) -> Result<(), StoreError> {
        check_here(&current.object_ref)?;
        let current = current.clone();
        self.run(move |inner| {
            inner.delete_lock(&current.object_ref.name, |there| {
                check_precondition(&current, there)
            })
        })
        .await
    }

    async fn delete_session(&self, current: &Object<Session>) -> Result<(), StoreError> {
        check_here(&current.object_ref)?;
        let current = current.object_version();
        self.run(move |inner| {
            inner.delete_session(&current.object_ref.name, |there| {
                check_precondition(&current, there)
            })
        })
        .await
    }
}

#[cfg(test)]
mod tests;
