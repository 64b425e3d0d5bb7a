//! Backups, and what restoring one does: the objects are as they were, at their own versions.

use super::super::tables::{LOCKS, SESSIONS, WriteTxn};
use super::EmbeddedStore;
use crate::protocol::token::Revision;
use crate::store::StoreError;

/// Everything that the store had at a revision. Pods are none of it.
#[derive(Clone)]
pub struct Backup {
    revision: Revision,
    locks: Vec<Document>,
    sessions: Vec<Document>,
}

/// A document by its name, and the revision at which it was written.
type Document = (String, u64, Vec<u8>);

impl Backup {
    /// The revision that the store was at.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        self.revision
    }
}

impl EmbeddedStore {
    /// A backup of everything.
    ///
    /// # Errors
    /// What the database says.
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

    /// Puts everything back, with this much added to the revision, and ends all watches. With nothing
    /// added the store repeats revisions that it has given before.
    ///
    /// # Errors
    /// What the database says.
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
