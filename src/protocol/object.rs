//! What a store returns: objects with their versions, pages, events of a watch, and errors.
//!
//! The ports of `store` return these values, and the pure parts of agent and operator decide on
//! them. An error states what is *known* of a write: `Unavailable` was not applied, `Ambiguous` may
//! have been, and only a re-read shows it.

use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::ids::Resource;
use super::lock::Lock;
use super::token::Revision;

/// An object of the store, with what its next write needs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

/// What the adapter keeps says nothing that the content and the version do not.
impl PartialEq for Original {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Original {}

impl Hash for Original {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Original {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Original")
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockAtRevision {
    /// The lock; `None` if it does not exist.
    pub lock: Option<Stored<Lock>>,
    /// The revision of the read, at least as new as everything acknowledged before the request.
    pub revision: Revision,
}

/// An event of a watch on the locks that one session holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

impl LockEvent {
    /// Returns the revision that it reports.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        match self {
            Self::Held(stored) => stored.version,
            Self::Gone { at, .. } | Self::Bookmark(at) => *at,
        }
    }
}

/// Why a call to the store failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreError {
    /// Another write came first, or (for a create) the object exists. It may have been the caller's
    /// own write whose answer was lost: re-read.
    Conflict,
    /// The lock's queue has no room. Only returned by `join`. Not applied.
    QueueFull,
    /// The object does not exist.
    NotFound(String),
    /// The namespace or Leasehold's kinds do not exist, and retrying does not help. Not applied.
    /// The message says what to do.
    NotInstalled(String),
    /// The store does not accept the credentials. The message says what to do.
    Unauthenticated(String),
    /// The store's access control rejected the request: a permission is missing. Has the store's
    /// message.
    Denied(String),
    /// An admission policy rejected the request, regardless of the caller's permissions. Has the
    /// store's message.
    DeniedByPolicy(String),
    /// A resource quota is exceeded. Has the store's message.
    QuotaExceeded(String),
    /// The store rejected the content: a bug, or an object that a user edited.
    Invalid(String),
    /// The lock object of that name guards another resource. Locks are never shared.
    Collision {
        /// The name of the object.
        name: String,
        /// The resource that it guards.
        found: String,
    },
    /// The continue token is too old, or not one of the store's. Only returned by `list` with
    /// `next`. Has the store's message.
    ContinueTokenExpired(String),
    /// The watch starts after a revision whose events are no longer kept. List again, and watch
    /// from there.
    WatchExpired(String),
    /// This version cannot read the object, so nothing may be decided by it.
    Unreadable(String),
    /// The store could not be reached, or answered that it did nothing. Not applied.
    Unavailable(String),
    /// No answer, or one without a result. The write may have been applied, or may be applied
    /// later.
    Ambiguous(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict => f.write_str("conflict: the object was modified concurrently"),
            Self::QueueFull => f.write_str("the lock's queue is full"),
            Self::NotFound(words) => write!(f, "not found: {words}"),
            Self::NotInstalled(words) | Self::Unauthenticated(words) => f.write_str(words),
            Self::Denied(words) => write!(f, "denied: {words}"),
            Self::DeniedByPolicy(words) => write!(f, "denied by policy: {words}"),
            Self::QuotaExceeded(words) => write!(f, "quota exceeded: {words}"),
            Self::Invalid(words) => write!(f, "the store rejected the object: {words}"),
            Self::Collision { name, found } => {
                write!(
                    f,
                    "the lock object {name} guards another resource, {found:?}"
                )
            }
            Self::ContinueTokenExpired(words) => write!(f, "the continue token expired: {words}"),
            Self::WatchExpired(words) => write!(f, "the watch's resourceVersion expired: {words}"),
            Self::Unreadable(words) => write!(f, "unreadable object: {words}"),
            Self::Unavailable(words) => write!(f, "the store is unavailable: {words}"),
            Self::Ambiguous(words) => write!(f, "the outcome is unknown: {words}"),
        }
    }
}

impl std::error::Error for StoreError {}

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

    /// Returns the error of an answer that has no result.
    #[must_use]
    pub fn no_result() -> Self {
        Self::Ambiguous("the answer has no result".into())
    }

    /// Returns whether a retry can succeed: the store was unavailable, or the outcome is unknown.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Ambiguous(_))
    }
}
