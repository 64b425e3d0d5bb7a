//! The three tables of the file, and transactions on them.
//!
//! All functions block. Each write commits in two phases: the new pages are on disk before the
//! header points at them. So a header that points at damaged pages means damage and not a crash,
//! and the database never falls back to the state before an acknowledged write.

use redb::{
    Database, ReadTransaction, ReadableDatabase as _, ReadableTable as _, Table, TableDefinition,
    WriteTransaction,
};
use serde::de::DeserializeOwned;

use super::record;
use crate::protocol::token::Revision;
use crate::store::StoreError;

/// A table of documents by name, each with the revision at which it was written.
pub(super) type DocumentTable = TableDefinition<'static, &'static str, (u64, &'static [u8])>;

/// Locks by resource.
pub(super) const LOCKS: DocumentTable = TableDefinition::new("locks");
/// Sessions by id.
pub(super) const SESSIONS: DocumentTable = TableDefinition::new("sessions");
/// Numbers of the whole store.
const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");
/// The last consumed revision.
const REVISION: &str = "revision";
/// The format of the file.
const FORMAT: &str = "format";
/// The format that this version writes.
pub(super) const FORMAT_NOW: u64 = 1;

/// A decoded document, with the revision at which it was written.
#[derive(Clone, Debug)]
pub(super) struct Versioned<T> {
    pub(super) version: Revision,
    pub(super) record: T,
}

/// Creates the tables of a new file.
///
/// # Errors
/// The error of the database.
pub(super) fn create(database: &Database, first: Revision) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    transaction.open_table(LOCKS)?;
    transaction.open_table(SESSIONS)?;
    {
        let mut meta = transaction.open_table(META)?;
        meta.insert(FORMAT, FORMAT_NOW)?;
        meta.insert(REVISION, first.0)?;
    }
    Ok(transaction.commit()?)
}

/// Returns the format and the revision of a file; `None` where it has none.
///
/// # Errors
/// The error of the database.
pub(super) fn format_and_revision(
    database: &Database,
) -> Result<(Option<u64>, Option<Revision>), redb::Error> {
    let meta = database.begin_read()?.open_table(META)?;
    let format = meta.get(FORMAT)?.map(|format| format.value());
    let revision = meta.get(REVISION)?.map(|revision| revision.value());
    Ok((format, revision.map(Revision)))
}

/// A consistent snapshot of all tables.
pub(super) struct Snapshot(ReadTransaction);

impl Snapshot {
    pub(super) fn open(database: &Database) -> Result<Self, StoreError> {
        database
            .begin_read()
            .map(Self)
            .map_err(|error| failed(error.into()))
    }

    /// Returns the revision of the store.
    pub(super) fn revision(&self) -> Result<Revision, StoreError> {
        let read = || -> Result<_, redb::Error> {
            let meta = self.0.open_table(META)?;
            Ok(meta.get(REVISION)?.map(|revision| revision.value()))
        };
        require_revision(read().map_err(failed)?)
    }

    /// Returns one document.
    pub(super) fn get<T: DeserializeOwned>(
        &self,
        documents: DocumentTable,
        name: &str,
    ) -> Result<Option<Versioned<T>>, StoreError> {
        let read = || -> Result<_, redb::Error> {
            let table = self.0.open_table(documents)?;
            let found = table.get(name)?;
            Ok(found.map(|found| (found.value().0, found.value().1.to_vec())))
        };
        let found = read().map_err(failed)?;
        found
            .map(|(version, document)| decode(name, version, &document))
            .transpose()
    }

    /// Returns all documents as bytes, by name, each with the revision at which it was written.
    pub(super) fn documents(
        &self,
        documents: DocumentTable,
    ) -> Result<Vec<(String, u64, Vec<u8>)>, StoreError> {
        let read = || -> Result<_, redb::Error> {
            let table = self.0.open_table(documents)?;
            let mut all = Vec::new();
            for entry in table.iter()? {
                let (name, found) = entry?;
                let (version, document) = found.value();
                all.push((name.value().to_owned(), version, document.to_vec()));
            }
            Ok(all)
        };
        read().map_err(failed)
    }

    /// Calls `each` for each document with a name after `after`, in order, until it returns false.
    pub(super) fn walk<T: DeserializeOwned>(
        &self,
        documents: DocumentTable,
        after: Option<&str>,
        mut each: impl FnMut(&str, Result<Versioned<T>, StoreError>) -> bool,
    ) -> Result<(), StoreError> {
        let mut walk = || -> Result<_, redb::Error> {
            let table = self.0.open_table(documents)?;
            for entry in table.range(after.unwrap_or_default()..)? {
                let (name, found) = entry?;
                let (name, (version, document)) = (name.value(), found.value());
                if after == Some(name) {
                    continue;
                }
                if !each(name, decode(name, version, document)) {
                    break;
                }
            }
            Ok(())
        };
        walk().map_err(failed)
    }
}

/// A write transaction. Dropping it discards the write.
pub(super) struct WriteTxn(WriteTransaction);

impl WriteTxn {
    pub(super) fn begin(database: &Database) -> Result<Self, StoreError> {
        let mut transaction = database
            .begin_write()
            .map_err(|error| failed(error.into()))?;
        transaction.set_two_phase_commit(true);
        Ok(Self(transaction))
    }

    /// Returns one document, as it is in this transaction.
    pub(super) fn get<T: DeserializeOwned>(
        &self,
        documents: DocumentTable,
        name: &str,
    ) -> Result<Option<Versioned<T>>, StoreError> {
        let read = || -> Result<_, redb::Error> {
            let table = self.0.open_table(documents)?;
            let found = table.get(name)?;
            Ok(found.map(|found| (found.value().0, found.value().1.to_vec())))
        };
        let found = read().map_err(failed)?;
        found
            .map(|(version, document)| decode(name, version, &document))
            .transpose()
    }

    /// Writes a document, or removes it if `document` is `None`. Consumes a revision.
    pub(super) fn put(
        &self,
        documents: DocumentTable,
        name: &str,
        document: Option<&[u8]>,
    ) -> Result<Revision, StoreError> {
        let Revision(at) = self.next_revision()?;
        self.set_revision(Revision(at))?;
        let write = |mut table: Table<'_, &str, (u64, &[u8])>| -> Result<_, redb::Error> {
            match document {
                Some(document) => table.insert(name, (at, document))?,
                None => table.remove(name)?,
            };
            Ok(())
        };
        let table = self.0.open_table(documents);
        table
            .map_err(redb::Error::from)
            .and_then(write)
            .map_err(failed)?;
        Ok(Revision(at))
    }

    /// Returns the revision that this write consumes.
    pub(super) fn next_revision(&self) -> Result<Revision, StoreError> {
        let next = self.revision()?.0.checked_add(1);
        next.map(Revision).ok_or_else(|| {
            StoreError::Unavailable("the store has no revision left to consume".to_owned())
        })
    }

    /// Replaces all documents.
    pub(super) fn replace(
        &self,
        documents: DocumentTable,
        by: &[(String, u64, Vec<u8>)],
    ) -> Result<(), StoreError> {
        let write = || -> Result<_, redb::Error> {
            let mut table = self.0.open_table(documents)?;
            table.retain(|_, _| false)?;
            for (name, version, document) in by {
                table.insert(name.as_str(), (*version, document.as_slice()))?;
            }
            Ok(())
        };
        write().map_err(failed)
    }

    /// Returns the revision of the store.
    fn revision(&self) -> Result<Revision, StoreError> {
        let read = || -> Result<_, redb::Error> {
            let meta = self.0.open_table(META)?;
            Ok(meta.get(REVISION)?.map(|revision| revision.value()))
        };
        require_revision(read().map_err(failed)?)
    }

    /// Sets the revision that the next write follows.
    pub(super) fn set_revision(&self, revision: Revision) -> Result<(), StoreError> {
        let write = || -> Result<_, redb::Error> {
            let mut meta = self.0.open_table(META)?;
            meta.insert(REVISION, revision.0)?;
            Ok(())
        };
        write().map_err(failed)
    }

    /// Commits the write. It is on disk after success.
    ///
    /// # Errors
    /// `Ambiguous`: a failed commit may be on disk.
    pub(super) fn commit(self) -> Result<(), StoreError> {
        self.0.commit().map_err(|error| {
            StoreError::Ambiguous(format!(
                "the write to the data directory failed ({error}); check the disk and restart"
            ))
        })
    }
}

fn decode<T: DeserializeOwned>(
    name: &str,
    version: u64,
    document: &[u8],
) -> Result<Versioned<T>, StoreError> {
    Ok(Versioned {
        version: Revision(version),
        record: record::read(name, document)?,
    })
}

fn require_revision(revision: Option<u64>) -> Result<Revision, StoreError> {
    revision
        .map(Revision)
        .ok_or_else(|| StoreError::Unreadable("the store has no revision".to_owned()))
}

/// The error of a call that wrote nothing.
#[expect(
    clippy::needless_pass_by_value,
    reason = "it is what `map_err` has to give"
)]
fn failed(error: redb::Error) -> StoreError {
    StoreError::Unavailable(format!(
        "the data directory cannot be read or written ({error}); check the disk and restart"
    ))
}
