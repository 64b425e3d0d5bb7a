//! The ports in one process, on a file or in memory, for `leasehold dev` and single hosts.
//!
//! It behaves like the API server. One revision counter rises with every write. Writes are
//! compare-and-swaps on an object's revision, lists and pages are consistent, and a watch starts at
//! any revision that is still remembered. The same invariants are checked. What was acknowledged is
//! on disk. One mutex is held from before a write until its event is sent, so events have the order
//! of their revisions. It decides nothing about locks, and does not share its directory with
//! another process.
//!
//! It has no access control, and only one namespace. Unused objects are deleted only when a
//! directory is opened, before anything uses it. While it is in use, only `test_support` and `fleet`
//! delete objects, for tests and the simulation.

mod file;
mod fleet;
mod history;
mod listing;
mod record;
pub(crate) mod rules;
mod tables;
mod test_support;
mod unused;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redb::Database;
use serde_json::Value;

use self::file::SideFiles;
use self::fleet::{Pods, Uid};
use self::history::{Change, History};
use self::record::{LockRecord, SessionRecord};
use self::tables::{DocumentTable, LOCKS, SESSIONS, Snapshot, Versioned, WriteTxn};
use super::{
    LockAtRevision, LockStore, LockWatch, Original, Page, SessionStore, StoreError, Stored, within,
};
use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
use crate::protocol::queue::Waiter;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;

pub use file::OpenError;
#[cfg(target_os = "linux")]
pub(crate) use file::{make_directory as create_directory, private};
pub use fleet::NAMESPACE;
pub use test_support::Backup;

/// The time limit of a call. A slower disk cannot be used for locks.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// The store. A clone is another handle to the same store.
#[derive(Clone)]
pub struct EmbeddedStore(Arc<Inner>);

struct Inner {
    database: Database,
    /// Locked from before a write until its event is sent, so that events have the order of their
    /// revisions.
    history: Mutex<History>,
    /// The reports of pods.
    pods: Mutex<Pods>,
    /// `None` in memory. The fields are dropped in this order: the directory stays locked until the
    /// database is closed.
    side_files: Option<SideFiles>,
}

impl EmbeddedStore {
    /// Opens a data directory, and creates what is missing. The revisions of a new store follow
    /// `first`, or the last recorded one of its predecessor in this directory. If `first` is above
    /// all revisions of a discarded store, tokens keep rising.
    ///
    /// Blocks.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open(directory: &Path, first: Revision) -> Result<Self, OpenError> {
        let mut opened = file::open(directory, first)?;
        if let Err(error) = unused::delete_unused(&opened.database) {
            tracing::warn!(%error, "cleaning up after earlier processes failed");
            // After a failed write the database answers nothing until it is reopened.
            opened = opened.again()?;
        }
        let revision = opened.revision()?;
        Ok(Self::on(opened.database, Some(opened.side_files), revision))
    }

    /// Creates a store that ends with the process. Its revisions follow `first`.
    ///
    /// # Errors
    /// The error of the database; none is known.
    pub fn in_memory(first: Revision) -> Result<Self, StoreError> {
        let database = file::in_memory(first);
        let database = database.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Self::on(database, None, first))
    }

    fn on(database: Database, side_files: Option<SideFiles>, revision: Revision) -> Self {
        let history = Mutex::new(History::new(revision));
        Self(Arc::new(Inner {
            database,
            history,
            pods: Mutex::default(),
            side_files,
        }))
    }

    /// Runs a call on a thread that may block. In memory nothing blocks, and a simulation needs a
    /// deterministic order.
    async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.0.side_files.is_none() {
            return call(&self.0);
        }
        let inner = self.0.clone();
        let task = tokio::task::spawn_blocking(move || call(&inner));
        within(CALL_LIMIT, async {
            task.await.unwrap_or_else(|panic| {
                Err(StoreError::Ambiguous(format!("the store failed: {panic}")))
            })
        })
        .await
    }

    /// Like [`Self::run`] for a read: without an answer nothing happened.
    async fn read<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.run(call).await.map_err(|error| match error {
            StoreError::Ambiguous(what) => StoreError::Unavailable(what),
            known => known,
        })
    }
}

impl Inner {
    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pods(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn snapshot(&self) -> Result<Snapshot, StoreError> {
        Snapshot::open(&self.database)
    }

    fn create_lock(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError> {
        let mut history = self.history();
        let write = WriteTxn::begin(&self.database)?;
        let there: Option<Versioned<LockRecord>> = write.get(LOCKS, resource.as_str())?;
        if there.is_some() {
            return Err(StoreError::Conflict);
        }
        let uid = self.new_uid(&history, &write)?;
        let record = LockRecord::unheld(resource, uid.as_deref());
        self.write_lock(write, &mut history, None, resource, &record)
    }

    /// The comparison and the write are one transaction, and the database runs one write at a time:
    /// of all writes based on one version, one succeeds.
    fn update_lock(&self, decided_on: &Identity, next: &Lock) -> Result<Stored<Lock>, StoreError> {
        let mut history = self.history();
        let write = WriteTxn::begin(&self.database)?;
        let found = write.get(LOCKS, next.resource.as_str())?;
        let found = compare(found, decided_on, LockRecord::uid)?;
        let before = stored_lock(&found)?;
        rules::check_lock(&before.value, next)?;
        if before.value == *next {
            // As on the API server, a write without a change consumes no revision.
            return Ok(before);
        }
        let record: LockRecord = found.record.updated(next);
        self.write_lock(write, &mut history, Some(before), &next.resource, &record)
    }

    fn join_lock(&self, resource: &Resource, waiter: Waiter) -> Result<Stored<Lock>, StoreError> {
        let mut history = self.history();
        let write = WriteTxn::begin(&self.database)?;
        let found: Option<Versioned<LockRecord>> = write.get(LOCKS, resource.as_str())?;
        let found = found.ok_or_else(|| StoreError::NotFound("no such object".to_owned()))?;
        let before = stored_lock(&found)?;
        let next = before.value.joined_by(waiter);
        let next = next.ok_or_else(|| StoreError::of_refused_join(&before.value))?;
        let record: LockRecord = found.record.updated(&next);
        self.write_lock(write, &mut history, Some(before), resource, &record)
    }

    fn create_session(&self, session: &Session) -> Result<Stored<Session>, StoreError> {
        let mut history = self.history();
        let write = WriteTxn::begin(&self.database)?;
        let there: Option<Versioned<SessionRecord>> = write.get(SESSIONS, session.id.as_str())?;
        if there.is_some() {
            return Err(StoreError::Conflict);
        }
        let uid = self.new_uid(&history, &write)?;
        let record = SessionRecord::new(session, uid.as_deref());
        self.write_session(write, &mut history, &record)
    }

    fn update_session(
        &self,
        decided_on: &Identity,
        next: &Session,
    ) -> Result<Stored<Session>, StoreError> {
        let mut history = self.history();
        let write = WriteTxn::begin(&self.database)?;
        let found = write.get(SESSIONS, next.id.as_str())?;
        let found = compare(found, decided_on, SessionRecord::uid)?;
        let before = stored_session(&found);
        rules::check_session(&before.value, next)?;
        if before.value == *next {
            return Ok(before);
        }
        let record: SessionRecord = found.record.updated(next);
        self.write_session(write, &mut history, &record)
    }

    fn write_lock(
        &self,
        write: WriteTxn,
        history: &mut History,
        before: Option<Stored<Lock>>,
        resource: &Resource,
        record: &LockRecord,
    ) -> Result<Stored<Lock>, StoreError> {
        let value = record.lock()?;
        let document = record::write(record)?;
        let version = write.put(LOCKS, resource.as_str(), Some(&document))?;
        self.commit(write, version)?;
        let stored = stored(value, version, record.uid());
        history.push(Change {
            at: version,
            name: resource.to_string(),
            before,
            after: Some(stored.clone()),
        });
        Ok(stored)
    }

    fn write_session(
        &self,
        write: WriteTxn,
        history: &mut History,
        record: &SessionRecord,
    ) -> Result<Stored<Session>, StoreError> {
        let session = record.session();
        let document = record::write(record)?;
        let version = write.put(SESSIONS, session.id.as_str(), Some(&document))?;
        self.commit(write, version)?;
        let stored = stored(session, version, record.uid());
        history.pass(version, stored.value.id.as_str(), Some(&stored));
        Ok(stored)
    }

    /// Deletes a lock's object, if `check_identity` accepts it. Like the API server it ignores the
    /// content.
    fn delete_lock(
        &self,
        name: &str,
        check_identity: impl FnOnce(&Identity) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut history = self.history();
        let (at, there) = self.delete(LOCKS, name, check_identity)?;
        let record = serde_json::from_value(there.record).ok();
        let before = record.and_then(|record| {
            let version = there.version;
            stored_lock(&Versioned { version, record }).ok()
        });
        history.push(Change {
            at,
            name: name.to_owned(),
            before,
            after: None,
        });
        Ok(())
    }

    /// Deletes a session's object, if `check_identity` accepts it.
    fn delete_session(
        &self,
        name: &str,
        check_identity: impl FnOnce(&Identity) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut history = self.history();
        let (at, _there) = self.delete(SESSIONS, name, check_identity)?;
        history.pass(at, name, None);
        Ok(())
    }

    /// Deletes a document. Returns the revision that this consumed, and the document.
    fn delete(
        &self,
        documents: DocumentTable,
        name: &str,
        check_identity: impl FnOnce(&Identity) -> Result<(), StoreError>,
    ) -> Result<(Revision, Versioned<Value>), StoreError> {
        let write = WriteTxn::begin(&self.database)?;
        let there: Option<Versioned<Value>> = write.get(documents, name)?;
        let there = there.ok_or_else(|| StoreError::NotFound(name.to_owned()))?;
        check_identity(&Identity {
            version: there.version,
            uid: there.record["uid"].as_str().map(Into::into),
        })?;
        let at = write.put(documents, name, None)?;
        self.commit(write, at)?;
        Ok((at, there))
    }

    /// Returns the uid of the object that this write creates. Only the operator in the simulation
    /// reads it, so files have none.
    fn new_uid(&self, history: &History, write: &WriteTxn) -> Result<Option<String>, StoreError> {
        if self.side_files.is_some() {
            return Ok(None);
        }
        let at = write.next_revision()?;
        Ok(Some(history.uid_at(at)))
    }

    fn commit(&self, write: WriteTxn, version: Revision) -> Result<(), StoreError> {
        write.commit()?;
        if let Some(side_files) = &self.side_files {
            side_files.record(version);
        }
        Ok(())
    }
}

/// What a write is based on: the object and its version.
#[derive(Clone, PartialEq, Eq)]
struct Identity {
    version: Revision,
    uid: Option<Arc<str>>,
}

impl Identity {
    fn of<T>(stored: &Stored<T>) -> Self {
        let uid = stored.original.get::<Uid>();
        Self {
            version: stored.version,
            uid: uid.and_then(|uid| uid.0.clone()),
        }
    }
}

/// The test of a compare-and-swap: is it still the object and version that the write is based on?
/// The version alone is not enough after a restored backup, which repeats revisions.
fn compare<T>(
    there: Option<Versioned<T>>,
    decided_on: &Identity,
    uid: fn(&T) -> Option<&str>,
) -> Result<Versioned<T>, StoreError> {
    let there = there.ok_or_else(|| StoreError::NotFound("no such object".to_owned()))?;
    let is_it =
        there.version == decided_on.version && uid(&there.record) == decided_on.uid.as_deref();
    if is_it {
        return Ok(there);
    }
    Err(StoreError::Conflict)
}

fn stored_lock(found: &Versioned<LockRecord>) -> Result<Stored<Lock>, StoreError> {
    Ok(stored(
        found.record.lock()?,
        found.version,
        found.record.uid(),
    ))
}

fn stored_session(found: &Versioned<SessionRecord>) -> Stored<Session> {
    stored(found.record.session(), found.version, found.record.uid())
}

/// Unknown fields are kept in the file, where the next write of this version finds them. So only
/// the uid has to be carried.
fn stored<T>(value: T, version: Revision, uid: Option<&str>) -> Stored<T> {
    Stored {
        value,
        version,
        original: Original::new(Uid(uid.map(Into::into))),
    }
}

#[async_trait]
impl LockStore for EmbeddedStore {
    async fn get(&self, resource: &Resource) -> Result<Option<Stored<Lock>>, StoreError> {
        let resource = resource.clone();
        self.read(move |inner| inner.snapshot()?.lock(&resource))
            .await
    }

    async fn get_with_revision(&self, resource: &Resource) -> Result<LockAtRevision, StoreError> {
        let resource = resource.clone();
        let look = move |inner: &Inner| {
            let snapshot = inner.snapshot()?;
            Ok(LockAtRevision {
                lock: snapshot.lock(&resource)?,
                revision: snapshot.revision()?,
            })
        };
        self.read(look).await
    }

    async fn list_held_by(&self, session: &SessionId) -> Result<Page<Lock>, StoreError> {
        let session = session.clone();
        self.read(move |inner| inner.snapshot()?.locks_held_by(&session))
            .await
    }

    async fn watch(&self, session: &SessionId, after: Revision) -> Result<LockWatch, StoreError> {
        let session = session.clone();
        self.read(move |inner| inner.history().watch(&session, after))
            .await
    }

    async fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError> {
        let next = next.map(str::to_owned);
        self.read(move |inner| inner.list(limit, next.as_deref()))
            .await
    }

    async fn create(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError> {
        let resource = resource.clone();
        self.run(move |inner| inner.create_lock(&resource)).await
    }

    async fn update(
        &self,
        current: &Stored<Lock>,
        next: &Lock,
    ) -> Result<Stored<Lock>, StoreError> {
        if current.value.resource != next.resource {
            return Err(StoreError::Invalid(
                "a lock's resource never changes".to_owned(),
            ));
        }
        let (decided_on, next) = (Identity::of(current), next.clone());
        self.run(move |inner| inner.update_lock(&decided_on, &next))
            .await
    }

    async fn join(
        &self,
        current: &Stored<Lock>,
        waiter: &Waiter,
    ) -> Result<Stored<Lock>, StoreError> {
        let (resource, waiter) = (current.value.resource.clone(), waiter.clone());
        self.run(move |inner| inner.join_lock(&resource, waiter))
            .await
    }
}

#[async_trait]
impl SessionStore for EmbeddedStore {
    async fn get(&self, id: &SessionId) -> Result<Option<Stored<Session>>, StoreError> {
        let id = id.clone();
        let get = move |inner: &Inner| {
            let found = inner.snapshot()?.get(SESSIONS, id.as_str())?;
            Ok(found.as_ref().map(stored_session))
        };
        self.read(get).await
    }

    async fn create(&self, session: &Session) -> Result<Stored<Session>, StoreError> {
        let session = session.clone();
        self.run(move |inner| inner.create_session(&session)).await
    }

    async fn update(
        &self,
        current: &Stored<Session>,
        next: &Session,
    ) -> Result<Stored<Session>, StoreError> {
        if current.value.id != next.id {
            return Err(StoreError::Invalid(
                "a session's name never changes".to_owned(),
            ));
        }
        let (decided_on, next) = (Identity::of(current), next.clone());
        self.run(move |inner| inner.update_session(&decided_on, &next))
            .await
    }
}
