//! What no agent does: deleting locks, writing documents past the rules, and changing the revision.
//!
//! For tests and the simulation, which reproduce administrators, newer versions and restored
//! backups. Shipped code does not use it.

mod backup;

use std::sync::Arc;

use serde_json::Value;

pub use self::backup::Backup;
use super::history::Change;
use super::tables::{LOCKS, SESSIONS, Versioned, WriteTxn};
use super::{EmbeddedStore, LockRecord, SessionRecord, record, stored_lock};
use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::settings::{ReleaseRequest, Settings};
use crate::protocol::token::Revision;
use crate::store::fleet::{ObjectRef, PodReport};
use crate::store::{StoreError, Stored};

impl EmbeddedStore {
    /// Deletes a lock's object, held or not, as an administrator may.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub async fn delete_lock(&self, resource: &Resource) -> Result<(), StoreError> {
        let resource = resource.clone();
        self.run(move |inner| inner.delete_lock(resource.as_str(), |_| Ok(())))
            .await
    }

    /// Deletes a session's object.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub async fn delete_session(&self, id: &SessionId) -> Result<(), StoreError> {
        let id = id.clone();
        self.run(move |inner| inner.delete_session(id.as_str(), |_| Ok(())))
            .await
    }

    /// Writes a lock, ignoring the rules and its version.
    ///
    /// # Errors
    /// The error of the database.
    pub async fn put_lock(&self, lock: &Lock) -> Result<Stored<Lock>, StoreError> {
        let lock = lock.clone();
        self.run(move |inner| {
            let mut history = inner.history();
            let write = WriteTxn::begin(&inner.database)?;
            let there: Option<Versioned<LockRecord>> = write.get(LOCKS, lock.resource.as_str())?;
            let before = there.as_ref().map(stored_lock).transpose()?;
            let uid = inner.new_uid(&history, &write)?;
            let made = || LockRecord::unheld(&lock.resource, uid.as_deref());
            let record = there.map_or_else(made, |found| found.record);
            let record = record.updated(&lock).with_settings(&lock.settings);
            inner.write_lock(write, &mut history, before, &lock.resource, &record)
        })
        .await
    }

    /// Removes the status of a lock, as a PUT without it would if no rule forbade it. The settings
    /// of users stay.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub async fn wipe_lock_status(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError> {
        self.rewrite_lock(resource, |lock| Lock {
            settings: lock.settings.clone(),
            ..Lock::unheld(lock.resource.clone())
        })
        .await
    }

    /// Sets or removes the release request of a lock.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub async fn request_release(
        &self,
        resource: &Resource,
        request: Option<ReleaseRequest>,
    ) -> Result<Stored<Lock>, StoreError> {
        self.rewrite_lock(resource, |lock| {
            let settings = Settings {
                release_request: request.map(Arc::new),
                ..lock.settings.clone()
            };
            Lock {
                settings,
                ..lock.clone()
            }
        })
        .await
    }

    async fn rewrite_lock(
        &self,
        resource: &Resource,
        rewrite: impl FnOnce(&Lock) -> Lock + Send + 'static,
    ) -> Result<Stored<Lock>, StoreError> {
        let resource = resource.clone();
        self.run(move |inner| {
            let mut history = inner.history();
            let write = WriteTxn::begin(&inner.database)?;
            let there: Option<Versioned<LockRecord>> = write.get(LOCKS, resource.as_str())?;
            let there = there.ok_or_else(|| StoreError::NotFound(resource.to_string()))?;
            let before = stored_lock(&there)?;
            let next = rewrite(&before.value);
            if before.value == next {
                // As on the API server, a write without a change consumes no revision.
                return Ok(before);
            }
            let record = there.record.updated(&next).with_settings(&next.settings);
            inner.write_lock(write, &mut history, Some(before), &resource, &record)
        })
        .await
    }

    /// Sets the kubelet's report of a pod.
    pub fn report_pod(&self, pod: PodReport) {
        self.0.pods().report(pod);
    }

    /// Removes a pod.
    pub fn forget_pod(&self, object_ref: &ObjectRef) {
        self.0.pods().forget(object_ref);
    }

    /// Returns all sessions, by name.
    ///
    /// # Errors
    /// The error of the database.
    pub async fn sessions(&self) -> Result<Vec<Session>, StoreError> {
        self.run(|inner| {
            let mut sessions = Vec::new();
            inner.snapshot()?.walk(
                SESSIONS,
                None,
                |_, found: Result<Versioned<SessionRecord>, _>| {
                    sessions.extend(found.ok().map(|found| found.record.session()));
                    true
                },
            )?;
            Ok(sessions)
        })
        .await
    }

    /// Edits the document of a lock, ignoring the rules.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; `Unreadable` if the result is not a lock's.
    pub async fn edit_lock_document(
        &self,
        resource: &Resource,
        edit: impl FnOnce(&mut Value) + Send + 'static,
    ) -> Result<Value, StoreError> {
        let resource = resource.clone();
        self.run(move |inner| {
            let mut history = inner.history();
            let write = WriteTxn::begin(&inner.database)?;
            let name = resource.as_str();
            let there: Option<Versioned<Value>> = write.get(LOCKS, name)?;
            let Some(Versioned { version, record }) = there else {
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
            let before = stored_lock(&Versioned {
                version,
                record: as_lock(&record)?,
            })?;
            let edited = as_lock(&document)?;
            let after = edited.lock()?;
            let at = write.put(LOCKS, name, Some(&record::write(&document)?))?;
            inner.commit(write, at)?;
            history.push(Change {
                at,
                name: name.to_owned(),
                before: Some(before),
                after: Some(super::stored(after, at, edited.uid())),
            });
            Ok(document)
        })
        .await
    }

    /// Sets the revision and ends all watches, as a restored backup does. The objects keep their
    /// revisions.
    ///
    /// # Errors
    /// The error of the database.
    pub async fn set_revision(&self, revision: Revision) -> Result<(), StoreError> {
        self.run(move |inner| {
            let mut history = inner.history();
            let write = WriteTxn::begin(&inner.database)?;
            write.set_revision(revision)?;
            inner.commit(write, revision)?;
            history.restart(revision);
            Ok(())
        })
        .await
    }
}
