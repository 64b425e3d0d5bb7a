//! The ports through which agent and operator reach a store, and their errors.
//!
//! Adapters (`k8s` and `embedded`) implement them. An error states what is *known* of a write:
//! `Unavailable` was not applied, `Ambiguous` may have been, and only a re-read shows it. Each call
//! of an adapter has a timeout, and no adapter repeats a write.

pub mod certificates;
pub mod cluster;
pub mod embedded;
pub mod faulty;
pub mod fleet;
pub mod namespaces;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
use crate::protocol::queue::Waiter;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;

/// An object of the store, with what its next write needs.
#[derive(Clone, Debug)]
pub struct Stored<T> {
    /// The content.
    pub value: T,
    /// The revision at which it was read or written, which a compare-and-swap compares.
    pub version: Revision,
    /// The object as its adapter read it.
    pub original: Original,
}

/// The object as its adapter read it, so that unknown fields survive its next write. Only the
/// adapter reads it.
#[derive(Clone)]
pub struct Original(Arc<dyn Any + Send + Sync>);

impl Original {
    /// Wraps the adapter's own value.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(original: T) -> Self {
        Self(Arc::new(original))
    }

    /// Returns the wrapped value, if it has this type.
    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Original {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Original")
    }
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The objects.
    pub items: Vec<Stored<T>>,
    /// The revision at which the list is consistent.
    pub revision: Revision,
    /// The continue token of the next page; `None` on the last page.
    pub next: Option<String>,
    /// The errors of objects that were left out because they cannot be read.
    pub unreadable: Vec<String>,
}

/// One lock, with the revision of the store at which it was read.
#[derive(Clone, Debug)]
pub struct LockAtRevision {
    /// The lock; `None` if it does not exist.
    pub lock: Option<Stored<Lock>>,
    /// The revision of the read, at least as new as everything acknowledged before the request.
    pub revision: Revision,
}

/// An event of a watch on the locks that one session holds.
#[derive(Clone, Debug)]
pub enum LockEvent {
    /// The session holds this lock, and the object changed.
    Held(Box<Stored<Lock>>),
    /// The session no longer holds this lock: it was released, handed over, taken over or deleted.
    /// The event does not say which.
    Gone {
        /// The resource of the lock.
        resource: Resource,
        /// The revision of the write that ended it.
        at: Revision,
    },
    /// No event with an older revision follows.
    Bookmark(Revision),
}

/// Events in the order of their revisions. The stream ends with the watch, or after an error; the
/// caller then opens another.
pub type LockWatch = BoxStream<'static, Result<LockEvent, StoreError>>;

/// Why a call to the store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Another write came first, or (for a create) the object exists. It may have been the caller's
    /// own write whose answer was lost: re-read.
    #[error("conflict: the object was modified concurrently")]
    Conflict,
    /// The lock's queue has no room. Only returned by `join`. Not applied.
    #[error("the lock's queue is full")]
    QueueFull,
    /// The object does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// The namespace or Leasehold's kinds do not exist, and retrying does not help. Not applied.
    /// The message says what to do.
    #[error("{0}")]
    NotInstalled(String),
    /// The store does not accept the credentials. The message says what to do.
    #[error("{0}")]
    Unauthenticated(String),
    /// The store's access control rejected the request: a permission is missing. Has the store's
    /// message.
    #[error("denied: {0}")]
    Denied(String),
    /// An admission policy rejected the request, regardless of the caller's permissions. Has the
    /// store's message.
    #[error("denied by policy: {0}")]
    DeniedByPolicy(String),
    /// A resource quota is exceeded. Has the store's message.
    #[error("quota exceeded: {0}")]
    QuotaExceeded(String),
    /// The store rejected the content: a bug, or an object that a user edited.
    #[error("the store rejected the object: {0}")]
    Invalid(String),
    /// The lock object of that name guards another resource. Locks are never shared.
    #[error("the lock object {name} guards another resource, {found:?}")]
    Collision {
        /// The name of the object.
        name: String,
        /// The resource that it guards.
        found: String,
    },
    /// The continue token is too old, or not one of the store's. Only returned by `list` with
    /// `next`. Has the store's message.
    #[error("the continue token expired: {0}")]
    ContinueTokenExpired(String),
    /// The watch starts after a revision whose events are no longer kept. List again, and watch
    /// from there.
    #[error("the watch's resourceVersion expired: {0}")]
    WatchExpired(String),
    /// This version cannot read the object, so nothing may be decided by it.
    #[error("unreadable object: {0}")]
    Unreadable(String),
    /// The store could not be reached, or answered that it did nothing. Not applied.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// No answer, or one without a result. The write may have been applied, or may be applied
    /// later.
    #[error("the outcome is unknown: {0}")]
    Ambiguous(String),
}

impl StoreError {
    /// Returns why a lock accepts no further waiter.
    #[must_use]
    pub const fn of_refused_join(lock: &Lock) -> Self {
        if lock.waiters.is_full() {
            Self::QueueFull
        } else {
            Self::Conflict
        }
    }

    /// Returns whether a retry can succeed: the store was unavailable, or the outcome is unknown.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Ambiguous(_))
    }
}

/// The store of locks.
#[async_trait]
pub trait LockStore: Send + Sync + 'static {
    /// Returns the current lock of a resource, never from a cache; `None` if it does not exist.
    async fn get(&self, resource: &Resource) -> Result<Option<Stored<Lock>>, StoreError>;

    /// Returns the lock of a resource and the store's revision, by a consistent list of one object.
    async fn get_with_revision(&self, resource: &Resource) -> Result<LockAtRevision, StoreError>;

    /// Returns the locks that a session holds, by a consistent list.
    async fn list_held_by(&self, session: &SessionId) -> Result<Page<Lock>, StoreError>;

    /// Watches the locks that a session holds, after a revision. Completes when the store has
    /// accepted the watch; every later write is an event.
    ///
    /// # Errors
    /// `WatchExpired` (here or as the last item) if events since then are no longer kept.
    async fn watch(&self, session: &SessionId, after: Revision) -> Result<LockWatch, StoreError>;

    /// Returns a page of a consistent list, at least as new as everything acknowledged before the
    /// request. `next` is the continue token of the previous page; `ContinueTokenExpired` if it
    /// cannot be used.
    async fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError>;

    /// Creates the lock object, without a holder. `Conflict` if it exists.
    async fn create(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError>;

    /// Compare-and-swap: writes `next` if the lock is still at `current`'s version.
    async fn update(&self, current: &Stored<Lock>, next: &Lock)
    -> Result<Stored<Lock>, StoreError>;

    /// Adds a waiter to the lock's queue, as [`Lock::joined_by`] defines: at its end, unless it is
    /// a preferred candidate. An append is not a compare-and-swap, because many joins at once would
    /// fail each other. So it may be applied late, to any version, but never twice.
    ///
    /// # Errors
    /// `QueueFull` if there is no room; `Conflict` if the lock may not accept that waiter now for
    /// another reason: re-read.
    async fn join(
        &self,
        current: &Stored<Lock>,
        waiter: &Waiter,
    ) -> Result<Stored<Lock>, StoreError>;
}

/// The store of sessions.
#[async_trait]
pub trait SessionStore: Send + Sync + 'static {
    /// Returns a current session; `None` if it does not exist.
    async fn get(&self, id: &SessionId) -> Result<Option<Stored<Session>>, StoreError>;

    /// Creates a session. `Conflict` if the name exists.
    async fn create(&self, session: &Session) -> Result<Stored<Session>, StoreError>;

    /// Compare-and-swap: writes `next` if the session is still at `current`'s version.
    async fn update(
        &self,
        current: &Stored<Session>,
        next: &Session,
    ) -> Result<Stored<Session>, StoreError>;
}

/// Limits the time of a call to the store. A write that is cut off may still be applied, so the
/// result is `Ambiguous`; for a read that does no harm.
///
/// # Errors
/// `Ambiguous` after the time limit, otherwise the error of the call.
pub async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer,
        Err(_elapsed) => Err(StoreError::Ambiguous(format!(
            "no answer within {} ms",
            limit.as_millis()
        ))),
    }
}
