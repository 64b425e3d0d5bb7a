//! A wrapper around a store that injects faults, for `leasehold dev --fault-api` and for tests.
//!
//! A call that fails is never made, even if its error is `Ambiguous`. A call that passes is
//! answered by the wrapped store, unchanged.

mod timed;

use std::future::ready;

use async_trait::async_trait;
use futures::channel::mpsc;
use futures::{StreamExt as _, stream};

use super::{LockAtRevision, LockStore, LockWatch, Page, SessionStore, StoreError, Stored};
use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
use crate::protocol::queue::Waiter;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;

pub use timed::TimedFaults;

/// A call to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `LockStore::get`.
    GetLock,
    /// `LockStore::get_with_revision`.
    GetLockWithRevision,
    /// `LockStore::list_held_by`.
    ListHeldLocks,
    /// `LockStore::watch`.
    WatchLocks,
    /// `LockStore::list`.
    ListLocks,
    /// `LockStore::create`.
    CreateLock,
    /// `LockStore::update`.
    UpdateLock,
    /// `LockStore::join`.
    JoinQueue,
    /// `SessionStore::get`.
    GetSession,
    /// `SessionStore::create`.
    CreateSession,
    /// `SessionStore::update` that increases the number of renewals.
    RenewSession,
    /// `SessionStore::update` that ends the session, or changes nothing.
    EndSession,
}

impl Call {
    /// Returns the kind of an update.
    #[must_use]
    pub const fn of_update(current: &Session, next: &Session) -> Self {
        if next.renewals > current.renewals {
            Self::RenewSession
        } else {
            Self::EndSession
        }
    }
}

/// The faults to inject.
pub trait Faults: Send + Sync + 'static {
    /// Returns the error of a call that fails; `None` lets it pass.
    fn on_call(&self, call: Call) -> Option<StoreError>;

    /// Registers a channel that ends a watch. It is dropped unused if watches do not fail.
    fn on_watch(&self, _breaks: mpsc::UnboundedSender<StoreError>) {}
}

/// A store with injected faults.
#[derive(Clone, Debug)]
pub struct FaultyStore<S, F> {
    store: S,
    faults: F,
}

impl<S, F: Faults> FaultyStore<S, F> {
    /// Wraps a store.
    pub const fn new(store: S, faults: F) -> Self {
        Self { store, faults }
    }

    fn admit(&self, call: Call) -> Result<&S, StoreError> {
        match self.faults.on_call(call) {
            Some(error) => Err(error),
            None => Ok(&self.store),
        }
    }
}

#[async_trait]
impl<S: LockStore, F: Faults> LockStore for FaultyStore<S, F> {
    async fn get(&self, resource: &Resource) -> Result<Option<Stored<Lock>>, StoreError> {
        self.admit(Call::GetLock)?.get(resource).await
    }

    async fn get_with_revision(&self, resource: &Resource) -> Result<LockAtRevision, StoreError> {
        self.admit(Call::GetLockWithRevision)?
            .get_with_revision(resource)
            .await
    }

    async fn list_held_by(&self, session: &SessionId) -> Result<Page<Lock>, StoreError> {
        self.admit(Call::ListHeldLocks)?.list_held_by(session).await
    }

    async fn watch(&self, session: &SessionId, after: Revision) -> Result<LockWatch, StoreError> {
        // Registered first: a fault while the watch is being opened ends it, too.
        let (interrupts, broken) = mpsc::unbounded();
        self.faults.on_watch(interrupts);
        let events = self.admit(Call::WatchLocks)?.watch(session, after).await?;
        // The watch ends with its own end or with a fault, whichever comes first.
        let events = events.map(Some).chain(stream::once(ready(None)));
        let broken = broken.flat_map(|error| stream::iter([Some(Err(error)), None]));
        // If the channel is dropped, the watch continues.
        let both = stream::select(events, broken.chain(stream::pending()));
        let until_the_end = both.scan((), |(), event| ready(event));
        Ok(until_the_end.boxed())
    }

    async fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError> {
        self.admit(Call::ListLocks)?.list(limit, next).await
    }

    async fn create(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError> {
        self.admit(Call::CreateLock)?.create(resource).await
    }

    async fn update(
        &self,
        current: &Stored<Lock>,
        next: &Lock,
    ) -> Result<Stored<Lock>, StoreError> {
        self.admit(Call::UpdateLock)?.update(current, next).await
    }

    async fn join(
        &self,
        current: &Stored<Lock>,
        waiter: &Waiter,
    ) -> Result<Stored<Lock>, StoreError> {
        self.admit(Call::JoinQueue)?.join(current, waiter).await
    }
}

#[async_trait]
impl<S: SessionStore, F: Faults> SessionStore for FaultyStore<S, F> {
    async fn get(&self, id: &SessionId) -> Result<Option<Stored<Session>>, StoreError> {
        self.admit(Call::GetSession)?.get(id).await
    }

    async fn create(&self, session: &Session) -> Result<Stored<Session>, StoreError> {
        self.admit(Call::CreateSession)?.create(session).await
    }

    async fn update(
        &self,
        current: &Stored<Session>,
        next: &Session,
    ) -> Result<Stored<Session>, StoreError> {
        let call = Call::of_update(&current.value, next);
        self.admit(call)?.update(current, next).await
    }
}
