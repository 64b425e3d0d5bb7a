//! A store that fails on demand, in front of another one: for `leasehold dev --fault-api` and for
//! tests.
//!
//! A call that fails was never made, whatever the fault says of it: `Ambiguous` too. What is let
//! through is answered by the store behind, unchanged.

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
    /// `LockStore::look`.
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
    /// `SessionStore::update` that counts one renewal more.
    RenewSession,
    /// `SessionStore::update` that ends the session, or changes nothing.
    EndSession,
}

impl Call {
    /// Which update of a session this is.
    #[must_use]
    pub const fn of_update(current: &Session, next: &Session) -> Self {
        if next.renewals > current.renewals {
            Self::RenewSession
        } else {
            Self::EndSession
        }
    }
}

/// What goes wrong.
pub trait Faults: Send + Sync + 'static {
    /// What a call is answered with instead of being made; none lets it through.
    fn on_call(&self, call: Call) -> Option<StoreError>;

    /// Joins what ends a watch; it is dropped, and never used, where watches do not fail.
    fn on_watch(&self, _breaks: mpsc::UnboundedSender<StoreError>) {}
}

/// A store with faults in front of it.
#[derive(Clone, Debug)]
pub struct FaultyStore<S, F> {
    store: S,
    faults: F,
}

impl<S, F: Faults> FaultyStore<S, F> {
    /// Puts faults in front of a store.
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
        // First of all: a fault that comes while the watch is being opened ends it too.
        let (interrupts, broken) = mpsc::unbounded();
        self.faults.on_watch(interrupts);
        let events = self.admit(Call::WatchLocks)?.watch(session, after).await?;
        // What comes first ends it: its own end, or a fault.
        let events = events.map(Some).chain(stream::once(ready(None)));
        let broken = broken.flat_map(|error| stream::iter([Some(Err(error)), None]));
        // Without anybody left who could break it, the watch goes on by itself.
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
