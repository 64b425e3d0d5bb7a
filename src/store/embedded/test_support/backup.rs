//! Backups and their restore: the objects return with their own versions.

use super::super::tables::{LOCKS, SESSIONS, WriteTxn};
use super::EmbeddedStore;
use crate::protocol::token::Revision;
use crate::store::StoreError;

/// The content of the store at a revision, without pods.
#[derive(Clone)]
pub struct Backup {
    revision: Revision,
    locks: Vec<Document>,
    sessions: Vec<Document>,
}

/// A document by its name, with the revision at which it was written.
type Document = (String, u64, Vec<u8>);

impl Backup {
    /// Returns the revision of the backup.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        self.revision
    }
}

impl EmbeddedStore {
    /// Creates a backup of everything.
    ///
    /// # Errors
    /// The error of the database.
    pub async fn backup(&self) -> Result<Backup, StoreError> {
        self.run(|inner| {
            let _no_write = inner.history();
            let snapshot = inner.snapshot()?;
            Ok(Backup {
                revision: snapshot.revision()?,
                locks: snapshot.documents(LOCKS)?,
                sessions: snapshot.documents(SESSIONS)?,
            })
        })
        .await
    }

    /// Restores everything, adds `bump` to the revision, and ends all watches. With a `bump` of 0
    /// the store repeats revisions that it has used before.
    ///
    /// # Errors
    /// The error of the database.
    pub async fn restore(&self, backup: &Backup, bump: u64) -> Result<(), StoreError> {
        let backup = backup.clone();
        self.run(move |inner| {
            let mut history = inner.history();
            let write = WriteTxn::begin(&inner.database)?;
            write.replace(LOCKS, &backup.locks)?;
            write.replace(SESSIONS, &backup.sessions)?;
            let revision = Revision(backup.revision.0.saturating_add(bump));
            write.set_revision(revision)?;
            inner.commit(write, revision)?;
            history.restart(revision);
            Ok(())
        })
        .await
    }
}
