//! The operator's port on the embedded store: its locks and sessions as they change, and what somebody
//! reports of pods.
//!
//! For the simulation, in which the operator runs on the same store as the agents; nothing that is
//! shipped calls it. There are no pods here: a simulation plays the kubelet through `back_door`.
//!
//! Invariant: nothing is written between what a feed begins with and the first change that it tells.

mod pods;
mod tellers;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream;

pub(super) use self::pods::Pods;
pub(super) use self::tellers::Tellers;
use super::record::SessionRecord;
use super::tables::{Found, SESSIONS};
use super::{EmbeddedStore, Identity, Inner, stored_session};
use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;
use crate::store::fleet::{Exact, Feed, FleetStore, Place, Placed, PodReport, Told};
use crate::store::{LockStore, SessionStore, StoreError, Stored};

/// The one namespace that everything is in.
pub const NAMESPACE: &str = "embedded";
/// The pause before a feed that could not begin tries again.
const PAUSE: Duration = Duration::from_secs(1);

/// What an object's own id is, as the adapter carries it. Objects in a file have none.
pub(super) struct Uid(pub(super) Option<Arc<str>>);

/// Where the object of a name is.
pub(super) fn place(name: &str) -> Place {
    Place {
        namespace: NAMESPACE.into(),
        name: name.into(),
    }
}

fn uid_of<T>(stored: &Stored<T>) -> Arc<str> {
    let uid = stored.original.get::<Uid>().and_then(|uid| uid.0.clone());
    uid.unwrap_or_else(|| "".into())
}

/// An object that was read or written, where it is.
pub(super) fn placed<T>(name: &str, stored: Stored<T>) -> Placed<T> {
    Placed {
        place: place(name),
        uid: uid_of(&stored),
        // Nothing here has finalizers.
        is_deleted: false,
        is_misnamed: false,
        set_at: None,
        stored,
    }
}

/// What a feed tells of an object after a write; nothing is stored when it was deleted.
pub(super) fn changed<T>(name: &str, stored: Option<Stored<T>>) -> Told<Placed<T>> {
    match stored {
        Some(stored) => Told::There(Box::new(placed(name, stored))),
        None => Told::Gone(place(name)),
    }
}

fn listed<T>(name: &str, stored: Result<Stored<T>, StoreError>) -> Told<Placed<T>> {
    match stored {
        Ok(stored) => changed(name, Some(stored)),
        Err(error) => Told::Unreadable {
            place: place(name),
            uid: "".into(),
            why: error.to_string(),
            free: None,
        },
    }
}

/// Everything that there is, then what follows.
fn begun<T: Send + 'static>(there: Vec<Told<T>>, changes: Feed<T>) -> Feed<T> {
    let there = stream::iter(there);
    let begin = stream::iter([Told::Anew]).chain(there);
    let begin = begin.chain(stream::iter([Told::Complete]));
    begin.chain(changes).boxed()
}

fn interrupted<T: Send + 'static>(error: StoreError) -> Feed<T> {
    let pause = stream::once(tokio::time::sleep(PAUSE)).filter_map(|()| async { None });
    stream::iter([Told::Interrupted(error)])
        .chain(pause)
        .boxed()
}

impl Inner {
    fn lock_feed(&self) -> Result<Feed<Placed<Lock>>, StoreError> {
        let mut history = self.history();
        let mut there = Vec::new();
        self.view()?.walk_locks(None, |name, lock| {
            there.push(listed(name, lock));
            true
        })?;
        Ok(begun(there, history.lock_tellers.follow()))
    }

    fn session_feed(&self) -> Result<Feed<Placed<Session>>, StoreError> {
        let mut history = self.history();
        let mut there = Vec::new();
        let each = |name: &str, found: Result<Found<SessionRecord>, StoreError>| {
            there.push(listed(name, found.map(|found| stored_session(&found))));
            true
        };
        self.view()?.walk(SESSIONS, None, each)?;
        Ok(begun(there, history.session_tellers.follow()))
    }
}

impl EmbeddedStore {
    /// A feed that begins anew whenever it ends: it fell behind, or a backup was restored.
    fn feed<T: Send + 'static>(&self, begin: fn(&Inner) -> Result<Feed<T>, StoreError>) -> Feed<T> {
        let feeds = stream::unfold(self.clone(), move |store| async move {
            let feed = store.read(begin).await.unwrap_or_else(interrupted);
            Some((feed, store))
        });
        feeds.flatten().boxed()
    }
}

fn is_here(place: &Place) -> bool {
    &*place.namespace == NAMESPACE
}

fn check_here(place: &Place) -> Result<(), StoreError> {
    let found = is_here(place).then_some(());
    found.ok_or_else(|| StoreError::NotFound(place.to_string()))
}

/// Whether what is there is this very object, at the version that was seen.
fn check_is(current: &Exact, there: &Identity) -> Result<(), StoreError> {
    let uid = there.uid.as_deref().unwrap_or_default();
    let is_it = uid == &*current.uid && there.version == current.version;
    is_it.then_some(()).ok_or(StoreError::Conflict)
}

#[async_trait]
impl FleetStore for EmbeddedStore {
    fn locks(&self) -> Feed<Placed<Lock>> {
        self.feed(Inner::lock_feed)
    }

    fn sessions(&self) -> Feed<Placed<Session>> {
        self.feed(Inner::session_feed)
    }

    fn ended_pods(&self) -> Feed<PodReport> {
        self.feed(|inner| Ok(inner.pods().feed()))
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.read(|inner| inner.view()?.revision()).await
    }

    async fn lock(&self, place: &Place) -> Result<Option<Placed<Lock>>, StoreError> {
        // A name that no lock can have is one that there is no lock of.
        let resource = Resource::parse(&place.name).ok();
        let Some(resource) = resource.filter(|_| is_here(place)) else {
            return Ok(None);
        };
        let found = LockStore::get(self, &resource).await?;
        Ok(found.map(|stored| placed(&place.name, stored)))
    }

    async fn session(&self, place: &Place) -> Result<Option<Placed<Session>>, StoreError> {
        if !is_here(place) {
            return Ok(None);
        }
        let found = SessionStore::get(self, &SessionId::from(&*place.name)).await?;
        Ok(found.map(|stored| placed(&place.name, stored)))
    }

    async fn pod(&self, place: &Place) -> Result<Option<PodReport>, StoreError> {
        let place = place.clone();
        self.read(move |inner| Ok(inner.pods().report_of(&place)))
            .await
    }

    /// The agents' own compare-and-swap. It leaves alone what people set.
    async fn update_lock(
        &self,
        current: &Placed<Lock>,
        next: &Lock,
    ) -> Result<Placed<Lock>, StoreError> {
        check_here(&current.place)?;
        let written = LockStore::update(self, &current.stored, next).await?;
        Ok(placed(&current.place.name, written))
    }

    /// The agents' own compare-and-swap: a revocation and a renewal that were decided on one version
    /// cannot both succeed.
    async fn update_session(
        &self,
        current: &Placed<Session>,
        next: &Session,
    ) -> Result<Placed<Session>, StoreError> {
        check_here(&current.place)?;
        let written = SessionStore::update(self, &current.stored, next).await?;
        Ok(placed(&current.place.name, written))
    }

    async fn delete_lock(&self, current: &Exact) -> Result<(), StoreError> {
        check_here(&current.place)?;
        let current = current.clone();
        self.run(move |inner| {
            inner.delete_lock(&current.place.name, |there| check_is(&current, there))
        })
        .await
    }

    async fn delete_session(&self, current: &Placed<Session>) -> Result<(), StoreError> {
        check_here(&current.place)?;
        let current = current.exact();
        self.run(move |inner| {
            inner.delete_session(&current.place.name, |there| check_is(&current, there))
        })
        .await
    }
}

#[cfg(test)]
mod tests;
