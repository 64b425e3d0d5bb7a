//! The data directory: it is created and locked, and its file is checked before use.
//!
//! A new file is written under another name and renamed when it is complete. An existing file is
//! never replaced, regardless of its content. Before it is opened for writing, a copy in memory is
//! checked to the last page, so a rejected file is not changed.
//!
//! Beside the file the last acknowledged revision is recorded. So a file that lost its last
//! commits, or was replaced by an older copy, is detected. The record is not synced: after a crash
//! of the machine it may be too low. A whole directory that was replaced by an older copy is not
//! detected.
//!
//! Only a fault of the file itself counts as damage. After an error of the disk the file must stay
//! where it is.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process;

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{Builder, Database, StorageBackend as _};

use super::tables::{self, FORMAT_NOW};
use crate::protocol::token::Revision;

/// The database file.
const FILE: &str = "leasehold.redb";
/// The name of the file until it is complete.
const UNFINISHED: &str = "leasehold.redb.new";
/// Locked by the process that uses the directory; contains its id until it stops.
const LOCK: &str = "lock";
/// Contains the last acknowledged revision.
const ACKNOWLEDGED: &str = "acknowledged";
/// The memory limit of the database's read cache. Locks are small.
const CACHE_BYTES: usize = 16 * 1024 * 1024;
/// The error of a file without a revision, on which everything depends.
const WITHOUT_REVISION: &str = "it has no revision";

/// Why a data directory cannot be used. A damaged file, or one of a newer version, was not changed;
/// missing files beside it may have been created.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process uses it.
    #[error(
        "the data directory {} is in use by another process ({by}); stop that one, or give \
         this one a --data-dir of its own", directory.display()
    )]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// The id of the other process, or what else is known of it.
        by: String,
    },
    /// The file system returned an error.
    #[error("{} cannot be used", path.display())]
    Io {
        /// What cannot be used.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file is damaged.
    #[error(
        "{} is damaged ({what}) and was left as it is; move it away to start a new one with larger \
         tokens, or see docs/dev.md for how to restore a copy", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// A newer version wrote the file.
    #[error(
        "{} has the format {found} of a newer version, and this one knows {FORMAT_NOW}; use \
         that version, or another --data-dir", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
}

/// A database and the files beside it.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) side_files: SideFiles,
    path: PathBuf,
}

impl Opened {
    /// Closes the database and opens it again.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub(super) fn again(self) -> Result<Self, OpenError> {
        drop(self.database);
        let database = open_database(&self.path)?;
        Ok(Self { database, ..self })
    }

    /// Returns the revision of the database.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub(super) fn revision(&self) -> Result<Revision, OpenError> {
        let read = tables::format_and_revision(&self.database);
        let (_, revision) = read.map_err(|error| unusable(&self.path, error))?;
        revision.ok_or_else(|| damaged(&self.path, WITHOUT_REVISION))
    }
}

/// The files beside the database.
pub(super) struct SideFiles {
    acknowledged: File,
    /// Locks the directory.
    lock: File,
}

impl Drop for SideFiles {
    /// Another process may soon have this id, and users kill the process that they read there. To
    /// close the file is not enough to unlock it: a process that is being started has a copy of it
    /// for a moment.
    fn drop(&mut self) {
        if let Err(error) = self.lock.set_len(0) {
            tracing::warn!(%error, "removing the process id failed");
        }
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "unlocking the data directory failed");
        }
    }
}

impl SideFiles {
    /// Records a revision whose write is on disk. If this fails, the write has still succeeded.
    pub(super) fn record(&self, revision: Revision) {
        let text = format!("{:020}\n", revision.0);
        if let Err(error) = self.write(text.as_bytes()) {
            tracing::warn!(%error, "recording the last revision failed");
        }
    }

    fn write(&self, text: &[u8]) -> io::Result<()> {
        let mut file = &self.acknowledged;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(text)
    }

    /// Returns the last recorded revision; `None` if there is none, or it cannot be read.
    fn recorded(&self) -> Option<Revision> {
        let read = || {
            let mut text = String::new();
            let mut file = &self.acknowledged;
            file.seek(SeekFrom::Start(0))?;
            file.read_to_string(&mut text)?;
            // Anything after the first line was written by something else.
            let Some(recorded) = text.lines().next() else {
                return Ok(None);
            };
            let recorded = recorded.parse().map_err(io::Error::other)?;
            Ok(Some(Revision(recorded)))
        };
        read().unwrap_or_else(|error: io::Error| {
            tracing::warn!(
                %error, file = ACKNOWLEDGED,
                advice = "make sure that the database is not an older copy; it would not be detected",
                "reading the recorded revision failed"
            );
            None
        })
    }
}

/// Opens the directory, and creates what is missing. The revisions of a new store follow `first`,
/// or the last recorded one.
///
/// # Errors
/// [`OpenError`], which says what to do.
pub(super) fn open(directory: &Path, first: Revision) -> Result<Opened, OpenError> {
    make_directory(directory)?;
    let lock = lock(directory)?;
    let recorded = directory.join(ACKNOWLEDGED);
    let side_files = SideFiles {
        acknowledged: private().open(&recorded).map_err(io_error(&recorded))?,
        lock,
    };
    let path = directory.join(FILE);
    let is_there = path.try_exists().map_err(io_error(&path))?;
    let recorded = side_files.recorded();
    if is_there {
        check(&path, recorded)?;
    } else {
        create(directory, after(recorded, first))?;
    }
    let database = open_database(&path)?;
    Ok(Opened {
        database,
        side_files,
        path,
    })
}

/// Returns where the revisions of a new file start. The file may be missing because a user moved a
/// damaged one away.
fn after(recorded: Option<Revision>, first: Revision) -> Revision {
    let Some(recorded) = recorded else {
        return first;
    };
    tracing::warn!(
        file = FILE, revision = %recorded,
        "database missing; created without its former locks"
    );
    first.max(Revision(recorded.0.saturating_add(1)))
}

fn open_database(path: &Path) -> Result<Database, OpenError> {
    let opened = builder().open(path);
    opened.map_err(|error| unusable(path, error.into()))
}

/// Creates a database in memory.
///
/// # Errors
/// None is known, but the library does not exclude it.
pub(super) fn in_memory(first: Revision) -> Result<Database, redb::Error> {
    let database = builder().create_with_backend(InMemoryBackend::new())?;
    tables::create(&database, first)?;
    Ok(database)
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Created files and directories are only for their owner: others need not see the locks. An
/// existing directory keeps its mode.
pub(crate) fn make_directory(directory: &Path) -> Result<(), OpenError> {
    let missing: Vec<_> = directory
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
        .collect();
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory).map_err(io_error(directory))?;
    // Each new name must survive a crash, and is stored in the parent directory.
    for made in missing {
        let above = made.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        if let Err(error) = sync(above) {
            // A user that may create a name there may still not read it.
            tracing::warn!(%error, directory = %above.display(), "syncing a directory failed");
        }
    }
    Ok(())
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn lock(directory: &Path) -> Result<File, OpenError> {
    let path = directory.join(LOCK);
    let mut file = private().open(&path).map_err(io_error(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let by = fs::read_to_string(&path).unwrap_or_default();
            return Err(in_use(directory, by.trim_end()));
        }
        Err(TryLockError::Error(error)) => return Err(io_error(&path)(error)),
    }
    let id = format!("{}\n", process::id());
    let written = file.set_len(0).and_then(|()| file.write_all(id.as_bytes()));
    written.map_err(io_error(&path))?;
    Ok(file)
}

/// Returns options for a file that is created if it is missing, only for its owner.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn create(directory: &Path, first: Revision) -> Result<(), OpenError> {
    let (unfinished, path) = (directory.join(UNFINISHED), directory.join(FILE));
    let file = private().truncate(true).open(&unfinished);
    let file = file.map_err(io_error(&unfinished))?;
    fill(file, first).map_err(|error| io_error(&unfinished)(as_io(error)))?;
    fs::rename(&unfinished, &path).map_err(io_error(&path))?;
    // The new name must survive a crash, too.
    sync(directory).map_err(io_error(directory))
}

fn fill(file: File, first: Revision) -> Result<(), redb::Error> {
    let database = builder().create_with_backend(FileBackend::new(file)?)?;
    tables::create(&database, first)?;
    Ok(database.close()?)
}

/// Reads the whole file and checks a copy in memory. The checksum of each page must match, this
/// version must know the format, and no acknowledged revision may be missing.
fn check(path: &Path, acknowledged: Option<Revision>) -> Result<(), OpenError> {
    let bytes = fs::read(path).map_err(io_error(path))?;
    if bytes.is_empty() {
        return Err(damaged(path, "it is empty"));
    }
    // Unexpected damage may make the library panic.
    let checked = panic::catch_unwind(AssertUnwindSafe(|| check_copy(&bytes)));
    let Ok(checked) = checked else {
        return Err(damaged(path, "its content is invalid"));
    };
    let (format, revision) = checked.map_err(|error| damaged(path, in_words(error)))?;
    match format {
        Some(FORMAT_NOW) => {}
        Some(found) if found > FORMAT_NOW => {
            let path = path.to_owned();
            return Err(OpenError::Newer { path, found });
        }
        _ => return Err(damaged(path, "it has no format")),
    }
    match (revision, acknowledged) {
        (None, _) => Err(damaged(path, WITHOUT_REVISION)),
        (Some(revision), Some(acknowledged)) if revision < acknowledged => Err(damaged(
            path,
            format!("it is at revision {revision}, and {acknowledged} was acknowledged"),
        )),
        _ => Ok(()),
    }
}

fn check_copy(bytes: &[u8]) -> Result<(Option<u64>, Option<Revision>), redb::Error> {
    let copy = InMemoryBackend::new();
    copy.set_len(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
    copy.write(0, bytes)?;
    let database = builder()
        .set_check_integrity_on_open(true)
        .create_with_backend(copy)?;
    tables::format_and_revision(&database)
}

/// Returns the error of a file that was checked or is new; only the last kind is damage.
fn unusable(path: &Path, error: redb::Error) -> OpenError {
    match error {
        redb::Error::Io(_) | redb::Error::PreviousIo | redb::Error::DatabaseClosed => {
            io_error(path)(as_io(error))
        }
        redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => {
            let directory = path.parent().unwrap_or(path);
            in_use(directory, &format!("it has {FILE} open"))
        }
        error => damaged(path, in_words(error)),
    }
}

fn as_io(error: redb::Error) -> io::Error {
    match error {
        redb::Error::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

fn in_words(error: redb::Error) -> String {
    match error {
        redb::Error::UpgradeRequired(found) => format!(
            "it has the format {found} of its database library, which is older than any that \
             Leasehold wrote"
        ),
        other => other.to_string(),
    }
}

fn in_use(directory: &Path, by: &str) -> OpenError {
    OpenError::InUse {
        directory: directory.to_owned(),
        by: by.to_owned(),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "mostly errors that end here")]
fn damaged(path: &Path, what: impl ToString) -> OpenError {
    OpenError::Damaged {
        path: path.to_owned(),
        what: what.to_string(),
    }
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io {
        path: path.clone(),
        source,
    }
}
