//! What no agent does: deleting locks, editing documents past the rules, and moving the revision.
//!
//! For tests and the simulation, which need what administrators, newer versions and restored
//! backups do. Nothing that is shipped calls it.

use serde_json::Value;

use super::history::Change;
use super::tables::{Found, LOCKS, SESSIONS, Write};
use super::{EmbeddedStore, LockRecord, SessionRecord, record, stored_lock};
use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;
use crate::store::{StoreError, Stored};

impl EmbeddedStore {
    /// Deletes a lock's object, held or not, as an administrator may.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub async fn delete_lock(&self, resource: &Resource) -> Result<(), StoreError> {
        let resource = resource.clone();
        self.run(move |inner| {
            let mut history = inner.history();
            let write = Write::begin(&inner.database)?;
            let there: Option<Found<LockRecord>> = write.get(LOCKS, resource.as_str())?;
            let Some(there) = there else {
                return Err(StoreError::NotFound(resource.to_string()));
            };
            let before = stored_lock(&there)?;
            let at = write.put(LOCKS, resource.as_str(), None)?;
            inner.commit(write, at)?;
            history.push(Change {
                at,
                before: Some(before),
                after: None,
            });
            Ok(())
        })
        .await
    }

    /// Deletes a session's object.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub async fn delete_session(&self, id: &SessionId) -> Result<(), StoreError> {
        let id = id.clone();
        self.run(move |inner| {
            let mut history = inner.history();
            let write = Write::begin(&inner.database)?;
            let there: Option<Found<Value>> = write.get(SESSIONS, id.as_str())?;
            if there.is_none() {
                return Err(StoreError::NotFound(id.to_string()));
            }
            let at = write.put(SESSIONS, id.as_str(), None)?;
            inner.commit(write, at)?;
            history.pass(at);
            Ok(())
        })
        .await
    }

    /// Writes a lock as it is given, whatever the rules say and whoever wrote before.
    ///
    /// # Errors
    /// What the database says.
    pub async fn put_lock(&self, lock: &Lock) -> Result<Stored<Lock>, StoreError> {
        let lock = lock.clone();
        self.run(move |inner| {
            let mut history = inner.history();
            let write = Write::begin(&inner.database)?;
            let there: Option<Found<LockRecord>> = write.get(LOCKS, lock.resource.as_str())?;
            let before = there.as_ref().map(stored_lock).transpose()?;
            let record =
                there.map_or_else(|| LockRecord::unheld(&lock.resource), |found| found.record);
            let record = record.updated(&lock).with_settings(&lock.settings);
            inner.write_lock(write, &mut history, before, &lock.resource, &record)
        })
        .await
    }

    /// All sessions, by name.
    ///
    /// # Errors
    /// What the database says.
    pub async fn sessions(&self) -> Result<Vec<Session>, StoreError> {
        self.run(|inner| {
            let mut sessions = Vec::new();
            inner.view()?.walk(
                SESSIONS,
                None,
                |_, found: Result<Found<SessionRecord>, _>| {
                    sessions.extend(found.ok().map(|found| found.record.session()));
                    true
                },
            )?;
            Ok(sessions)
        })
        .await
    }

    /// Reads a lock's document as it is in the file, and writes it as `edit` leaves it, whatever
    /// the rules say.
    ///
    /// # Errors
    /// `NotFound` when there is none; `Unreadable` when it is no lock's any more.
    pub async fn edit_lock_document(
        &self,
        resource: &Resource,
        edit: impl FnOnce(&mut Value) + Send + 'static,
    ) -> Result<Value, StoreError> {
        let resource = resource.clone();
        self.run(move |inner| {
            let mut history = inner.history();
            let write = Write::begin(&inner.database)?;
            let name = resource.as_str();
            let there: Option<Found<Value>> = write.get(LOCKS, name)?;
            let Some(Found { version, record }) = there else {
                return Err(StoreError::NotFound(name.to_owned()));
            };
            let mut document = record.clone();
            edit(&mut document);
            if document == record {
                return Ok(document);
            }
            let as_lock = |document: &Value| -> Result<LockRecord, StoreError> {
                record::read(name, &record::write(document)?)
            };
            let before = stored_lock(&Found {
                version,
                record: as_lock(&record)?,
            })?;
            let after = as_lock(&document)?.lock()?;
            let at = write.put(LOCKS, name, Some(&record::write(&document)?))?;
            inner.commit(write, at)?;
            history.push(Change {
                at,
                before: Some(before),
                after: Some(super::stored(after, at)),
            });
            Ok(document)
        })
        .await
    }

    /// Sets the revision and ends all watches, as a restored backup does; the objects stay at
    /// theirs.
    ///
    /// # Errors
    /// What the database says.
    pub async fn set_revision(&self, revision: Revision) -> Result<(), StoreError> {
        self.run(move |inner| {
            let mut history = inner.history();
            let write = Write::begin(&inner.database)?;
            write.set_revision(revision)?;
            inner.commit(write, revision)?;
            history.restart(revision);
            Ok(())
        })
        .await
    }
}
