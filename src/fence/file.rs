//! The record of the largest tokens on a file (redb).
//!
//! A thread of its own writes all tokens that arrived while it wrote the last ones in one transaction, so many new
//! leases at once cost few syncs.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf, absolute};
use std::thread;

use async_trait::async_trait;
use redb::{Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use tokio::sync::{mpsc, oneshot};

use super::gate::{Record, Recorded};
use crate::protocol::ids::Resource;
use crate::protocol::token::Token;

/// The database.
const FILE: &str = "fence.redb";
/// Its name until it is complete.
const UNFINISHED: &str = "fence.redb.new";
/// Locked by the fence that uses the directory.
const LOCK: &str = "lock";
/// The largest tokens by resource.
const TOKENS: TableDefinition<'static, &'static str, u64> = TableDefinition::new("tokens");
/// Numbers about the whole file.
const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");
/// The format of the file.
const FORMAT: &str = "format";
/// The format that this version writes.
const FORMAT_NOW: u64 = 1;
/// Whether all requests had ended when the last process stopped.
const SETTLED: &str = "settled";
/// The maximum number of tokens in one transaction.
const BATCH: usize = 1000;
const CACHE_BYTES: usize = 8 * 1024 * 1024;

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another fence uses it.
    #[error("the state directory {} is in use by another fence; give each fence its own", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// A newer version wrote the file.
    #[error("{} has the format {found} of a newer version, and this one knows {FORMAT_NOW}; use that version", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// The file system returned an error.
    #[error("the state directory {} cannot be used; leave its files as they are, and correct the disk or --state-dir", directory.display())]
    Io {
        /// The directory.
        directory: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file is damaged.
    #[error("{} is damaged; move it away only if tokens are verified with the locks, because its tokens are lost", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<redb::Error>,
    },
}

/// What to write, and where the result is sent.
struct Write {
    change: Change,
    done: oneshot::Sender<Result<(), String>>,
}

enum Change {
    Token(Resource, Token),
    Settled,
}

/// The record.
pub struct StateFile {
    writes: mpsc::UnboundedSender<Write>,
    /// Locks the directory.
    _lock: File,
}

impl StateFile {
    /// Opens the state of a directory, and creates what is missing. Blocks.
    ///
    /// # Errors
    /// [`StateError`], which says what to do.
    pub fn open(directory: &Path) -> Result<(Self, Recorded), StateError> {
        let path = directory.join(FILE);
        let unusable = |error| match error {
            redb::Error::DatabaseAlreadyOpen => StateError::InUse {
                directory: directory.to_owned(),
            },
            redb::Error::Io(source) if source.kind() != io::ErrorKind::InvalidData => {
                StateError::Io {
                    directory: directory.to_owned(),
                    source,
                }
            }
            source => StateError::Damaged {
                path: path.clone(),
                source: Box::new(source),
            },
        };
        let lock = lock(directory).map_err(unusable)?;
        let is_there = path.try_exists().map_err(|error| unusable(error.into()))?;
        if !is_there {
            create(directory).map_err(unusable)?;
        }
        let database = builder().open(&path);
        let database = database.map_err(|error: DatabaseError| unusable(error.into()))?;
        let (format, recorded) = read(&database).map_err(unusable)?;
        if format > FORMAT_NOW {
            let found = format;
            return Err(StateError::Newer { path, found });
        }
        // Until this process stops in order.
        clear_settled(&database).map_err(unusable)?;
        let (writes, incoming) = mpsc::unbounded_channel();
        thread::spawn(move || write_all(&path, Some(database), incoming));
        Ok((
            Self {
                writes,
                _lock: lock,
            },
            recorded,
        ))
    }

    /// Records that all requests have ended.
    ///
    /// # Errors
    /// The error of the database: the next process then waits as after a crash.
    pub async fn settle(&self) -> Result<(), String> {
        self.write(Change::Settled).await
    }

    async fn write(&self, change: Change) -> Result<(), String> {
        let (done, result) = oneshot::channel();
        // If the thread has ended, the result is missing, too.
        let _sent = self.writes.send(Write { change, done });
        result
            .await
            .unwrap_or_else(|_closed| Err("the state file is closed".to_owned()))
    }
}

#[async_trait]
impl Record for StateFile {
    async fn record(&self, resource: &Resource, token: Token) -> Result<(), String> {
        self.write(Change::Token(resource.clone(), token)).await
    }
}

/// Runs until all handles are dropped.
fn write_all(
    path: &Path,
    mut database: Option<Database>,
    mut incoming: mpsc::UnboundedReceiver<Write>,
) {
    while let Some(first) = incoming.blocking_recv() {
        let mut batch = vec![first];
        while batch.len() < BATCH
            && let Ok(next) = incoming.try_recv()
        {
            batch.push(next);
        }
        let result = write_batch(path, &mut database, &batch);
        for write in batch {
            // The client may have disconnected.
            let _unheard = write.done.send(result.clone());
        }
    }
}

/// After an error the database accepts nothing until it is opened again.
fn write_batch(
    path: &Path,
    database: &mut Option<Database>,
    batch: &[Write],
) -> Result<(), String> {
    let opened = match database.take() {
        Some(opened) => opened,
        None => builder().open(path).map_err(|error| error.to_string())?,
    };
    commit(&opened, batch).map_err(|error| error.to_string())?;
    *database = Some(opened);
    Ok(())
}

fn commit(database: &Database, batch: &[Write]) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    {
        let mut tokens = transaction.open_table(TOKENS)?;
        let mut meta = transaction.open_table(META)?;
        for write in batch {
            match &write.change {
                Change::Token(resource, token) => {
                    let resource = resource.as_str();
                    let recorded = tokens.get(resource)?.map(|recorded| recorded.value());
                    if recorded.is_none_or(|recorded| recorded < token.get()) {
                        tokens.insert(resource, token.get())?;
                    }
                }
                Change::Settled => {
                    meta.insert(SETTLED, 1)?;
                }
            }
        }
    }
    Ok(transaction.commit()?)
}

fn clear_settled(database: &Database) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    transaction.open_table(META)?.insert(SETTLED, 0)?;
    Ok(transaction.commit()?)
}

fn read(database: &Database) -> Result<(u64, Recorded), redb::Error> {
    let transaction = database.begin_read()?;
    let meta = transaction.open_table(META)?;
    let number = |name| Ok::<_, redb::Error>(meta.get(name)?.map_or(0, |number| number.value()));
    let mut tokens = HashMap::new();
    for entry in transaction.open_table(TOKENS)?.iter()? {
        let (resource, token) = entry?;
        match Resource::parse(resource.value()) {
            Ok(resource) => {
                tokens.insert(resource, Token::from_raw(token.value()));
            }
            // No request names it.
            Err(error) => tracing::warn!(%error, "recorded resource is not valid"),
        }
    }
    let is_settled = number(SETTLED)? == 1;
    let recorded = Recorded { tokens, is_settled };
    Ok((number(FORMAT)?, recorded))
}

/// Creates the directory, and locks it: two fences that start at once would both create the file.
fn lock(directory: &Path) -> Result<File, redb::Error> {
    let directory = absolute(directory)?;
    let is_missing = |path: &&Path| !path.exists();
    let missing: Vec<_> = directory.ancestors().take_while(is_missing).collect();
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&directory)?;
    for created in missing {
        sync_directory(created.parent().unwrap_or(created))?;
    }
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(directory.join(LOCK))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(redb::Error::DatabaseAlreadyOpen),
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

/// Creates the database under another name, and renames it when it is complete and on disk.
fn create(directory: &Path) -> Result<(), redb::Error> {
    let unfinished = directory.join(UNFINISHED);
    if unfinished.try_exists()? {
        fs::remove_file(&unfinished)?;
    }
    let database = builder().create(&unfinished)?;
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    transaction.open_table(TOKENS)?;
    // A new file may follow a lost one, whose last requests may not have ended.
    transaction.open_table(META)?.insert(FORMAT, FORMAT_NOW)?;
    transaction.commit()?;
    database.close()?;
    fs::rename(&unfinished, directory.join(FILE))?;
    sync_directory(directory)?;
    Ok(())
}

/// Writes the names of its files to the disk.
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

#[cfg(test)]
mod tests;
