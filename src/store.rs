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

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
pub use crate::protocol::object::{LockAtRevision, LockEvent, Original, Page, StoreError, Stored};
use crate::protocol::queue::Waiter;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;

/// Events in the order of their revisions. The stream ends with the watch, or after an error; the
/// caller then opens another.
pub type LockWatch = BoxStream<'static, Result<LockEvent, StoreError>>;

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
