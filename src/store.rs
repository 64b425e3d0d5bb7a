//! The ports through which agent and operator reach a store, and what their errors say.
//!
//! An adapter (`k8s`, or `embedded` in here) implements them. The errors say what is *known* of a
//! write: `Unavailable` was not applied, `Ambiguous` may have been, and only who re-reads knows.
//! Every call an adapter makes has a timeout; no adapter repeats a write by itself.

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

/// An object as the store has it, with what its next write needs.
#[derive(Clone, Debug)]
pub struct Stored<T> {
    /// What it says.
    pub value: T,
    /// The revision at which it was read or written: what a compare-and-swap compares.
    pub version: Revision,
    /// The object as the adapter read it.
    pub original: Original,
}

/// The object as its adapter read it, so that fields which this version does not know survive
/// its next write. Opaque to everybody else.
#[derive(Clone)]
pub struct Original(Arc<dyn Any + Send + Sync>);

impl Original {
    /// Wraps what the adapter wants back.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(original: T) -> Self {
        Self(Arc::new(original))
    }

    /// What was wrapped, if it is of this type.
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

/// One page of a listing.
#[derive(Clone, Debug)]
pub struct Page<T> {
    /// The objects.
    pub items: Vec<Stored<T>>,
    /// The revision at which the listing is consistent.
    pub revision: Revision,
    /// Where the next page starts; none on the last one.
    pub next: Option<String>,
    /// Objects that were left out because they cannot be read, each with the reason.
    pub unreadable: Vec<String>,
}

/// One lock, read together with the revision that the whole store is at.
#[derive(Clone, Debug)]
pub struct LockAtRevision {
    /// The lock; none when there is none.
    pub lock: Option<Stored<Lock>>,
    /// The revision at which this is consistent, at least as new as everything acknowledged
    /// before it was asked.
    pub revision: Revision,
}

/// What a watch tells of the locks that one session holds.
#[derive(Clone, Debug)]
pub enum LockEvent {
    /// The session holds this lock, newly or still: the object changed.
    Held(Box<Stored<Lock>>),
    /// The session no longer holds this lock: it was released, handed over, taken over or
    /// deleted. What became of it is not said.
    Gone {
        /// What the lock guards.
        resource: Resource,
        /// The revision of the write that ended it.
        at: Revision,
    },
    /// Nothing older than this is still to come.
    Bookmark(Revision),
}

/// Events in the order of their revisions. It ends when the store ends it or with an error;
/// whoever needs it opens another.
pub type LockWatch = BoxStream<'static, Result<LockEvent, StoreError>>;

/// Why a call to the store did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Somebody else's write came first, or (for a create) the object is there. It may have been
    /// one's own write whose answer was lost: re-read.
    #[error("conflict: the object was modified concurrently")]
    Conflict,
    /// The object is not there.
    #[error("not found: {0}")]
    NotFound(String),
    /// The namespace, or the store's knowledge of our kinds, is not there; no time helps. Not
    /// applied. Carries words that say how to make it.
    #[error("{0}")]
    NotInstalled(String),
    /// The store does not accept the credentials. Carries words that say what to do.
    #[error("{0}")]
    Unauthenticated(String),
    /// The store's access control refused: a right is missing. Carries its own words.
    #[error("denied: {0}")]
    Denied(String),
    /// An admission policy refused, whatever rights the caller has. Carries its own words.
    #[error("denied by policy: {0}")]
    DeniedByPolicy(String),
    /// A resource quota is used up. Carries the store's words.
    #[error("quota exceeded: {0}")]
    QuotaExceeded(String),
    /// The store's own rules refused the content; a bug, or an object that somebody edited.
    #[error("the store rejected the object: {0}")]
    Invalid(String),
    /// The lock object of that name guards another resource; it is never shared.
    #[error("the lock object {name} guards another resource, {found:?}")]
    Collision {
        /// The object's name.
        name: String,
        /// What it guards.
        found: String,
    },
    /// A listing cannot go on from there: the place is too old, or none that the store gave. Only
    /// `list` with a `next` answers it. Carries the store's words.
    #[error("the continue token expired: {0}")]
    ContinueTokenExpired(String),
    /// A watch was to begin after a revision whose events are no longer kept: list anew, and
    /// watch from there.
    #[error("the watch's resourceVersion expired: {0}")]
    WatchExpired(String),
    /// What was read makes no sense to this version; nothing may be decided by it.
    #[error("unreadable object: {0}")]
    Unreadable(String),
    /// The store could not be reached, or said that it did nothing. Not applied.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// No answer, or one that does not say. It may have been applied, or be applied later.
    #[error("the outcome is unknown: {0}")]
    Ambiguous(String),
}

impl StoreError {
    /// Whether trying again can help: the store was away or did not say what it did.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Ambiguous(_))
    }
}

/// Where locks are kept.
#[async_trait]
pub trait LockStore: Send + Sync + 'static {
    /// The lock of a resource, as of now (never from an older cache); none when there is none.
    async fn get(&self, resource: &Resource) -> Result<Option<Stored<Lock>>, StoreError>;

    /// The lock of a resource together with the store's revision, for who needs both: a consistent
    /// listing of one.
    async fn get_with_revision(&self, resource: &Resource) -> Result<LockAtRevision, StoreError>;

    /// The locks that a session holds, as a consistent listing.
    async fn list_held_by(&self, session: &SessionId) -> Result<Page<Lock>, StoreError>;

    /// What becomes of the locks that a session holds, from after this revision on. Answers when
    /// the store has accepted the watch; a write that begins later is told.
    ///
    /// # Errors
    /// `WatchExpired` (here or as the last item) when events since then are no longer kept.
    async fn watch(&self, session: &SessionId, after: Revision) -> Result<LockWatch, StoreError>;

    /// A consistent listing: what it answers with is at least as new as everything that was
    /// acknowledged before it was asked. `next` is where the page before ended; `ContinueTokenExpired` when
    /// it cannot go on from there.
    async fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError>;

    /// Makes the lock object, which nobody holds yet. `Conflict` when it is there.
    async fn create(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError>;

    /// Compare-and-swap: writes `next` if the lock is still at `current`'s version.
    async fn update(&self, current: &Stored<Lock>, next: &Lock)
    -> Result<Stored<Lock>, StoreError>;

    /// Adds a waiter to the lock's queue, as [`Lock::joined_by`] says: to its end, unless it is a
    /// preferred candidate. At the end of a queue where others wait already this is no
    /// compare-and-swap: many who come at once would only make each other's writes fail. So it can
    /// land late, on any version; never twice.
    ///
    /// # Errors
    /// `Conflict` when the lock may not have that waiter by now: re-read.
    async fn join(
        &self,
        current: &Stored<Lock>,
        waiter: &Waiter,
    ) -> Result<Stored<Lock>, StoreError>;
}

/// Where sessions are kept.
#[async_trait]
pub trait SessionStore: Send + Sync + 'static {
    /// A session, as of now; none when there is none.
    async fn get(&self, id: &SessionId) -> Result<Option<Stored<Session>>, StoreError>;

    /// Makes a session. `Conflict` when the name is taken.
    async fn create(&self, session: &Session) -> Result<Stored<Session>, StoreError>;

    /// Compare-and-swap: writes `next` if the session is still at `current`'s version.
    async fn update(
        &self,
        current: &Stored<Session>,
        next: &Session,
    ) -> Result<Stored<Session>, StoreError>;
}

/// Bounds a call to the store. A write that is cut off may still be applied, and a caller cannot
/// know: it is `Ambiguous`, and for a read that is no harm.
///
/// # Errors
/// `Ambiguous` when the time is up, else what the call answered.
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
