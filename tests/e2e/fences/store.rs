//! A store with a fence, as the writers of a random run use it.

use std::time::Duration;

use anyhow::Result;

use crate::history::Entry;

/// An entry that a writer appends to the log that the fence guards.
#[derive(Clone, Debug)]
pub(super) struct Append {
    pub(super) token: u64,
    /// Unique in the run, without quotes or spaces.
    pub(super) value: String,
    /// How long the writer pauses between the fence and the write, where these are two steps.
    pub(super) pause: Duration,
}

/// What the store answered. Everything else is an error: its outcome is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The entry is there.
    Accepted,
    /// The fence refused the token, and the entry is not there.
    Stale,
}

/// A store with an empty log, which its fence guards.
pub(super) trait Store {
    /// What a writer uses until an outcome is unknown. Dropping it ends it, also in the middle of an append.
    type Connection;

    /// Grants the lock with a larger token, where the fence reads the lock. An error means that the outcome is unknown.
    async fn grant(&self, _token: u64) -> Result<()> {
        Ok(())
    }

    /// Returns a connection. It fails while the store is away.
    async fn connect(&self) -> Result<Self::Connection>;

    /// Passes the fence and appends, in one transaction or one step. An error means that the outcome is unknown. That
    /// includes errors by which the store reports that it wrote nothing: the history then only knows less.
    async fn append(&self, connection: &mut Self::Connection, append: &Append) -> Result<Written>;

    /// Whether writers repeat an append with an unknown outcome, with the same token and value. It must have no second
    /// effect.
    fn repeats(&self) -> bool {
        true
    }

    /// How long each lease lasts at least. A fence that waits after it allowed an older request accepts almost nothing if
    /// a newer lease always comes before the wait ends.
    fn lease(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the log, in the order in which the store recorded its entries.
    async fn entries(&self) -> Result<Vec<Entry>>;

    /// Kills what runs the store, and returns when it works again.
    async fn crash(&self) -> Result<()>;
}
