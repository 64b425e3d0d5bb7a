//! The data directory: made, locked, and its file looked over before it is used.
//!
//! A file is made under another name and put in its place when it is whole. One that is in its
//! place is never made anew, whatever is in it. Before it is opened for writing it is read into
//! memory and checked there to the last page, so that one that is refused is left as it was.
//!
//! Beside the file is the last revision that was acknowledged, so that a file which lost its last
//! commits, or was replaced by an older copy, is noticed. It is not synced: what it says is at
//! most too low after the machine crashed. A whole directory that was replaced by an older copy
//! of itself is not noticed.
//!
//! Only what is wrong with the file itself is called damage. What the disk refuses is the disk's:
//! a file that could not be read or written for once has to stay where it is.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process;

use redb::backends::{FileBackend, InMemoryBackend};
use redb::{Builder, Database, StorageBackend as _};

use super::tables::{self, FORMAT_NOW};
use crate::protocol::token::Revision;

/// The file that everything is in.
const FILE: &str = "leasehold.redb";
/// The same while it is made.
const UNFINISHED: &str = "leasehold.redb.new";
/// Locked by the process that uses the directory, and has its id inside until that one stops.
const LOCK: &str = "lock";
/// Names the last revision that was acknowledged.
const ACKNOWLEDGED: &str = "acknowledged";
/// How much memory the database may use for what it has read. Locks are small.
const CACHE_BYTES: usize = 16 * 1024 * 1024;
/// What is wrong with a file that has lost the number that everything hangs on.
const WITHOUT_REVISION: &str = "it has no revision";

/// Why a data directory cannot be used. A file that is damaged, or a newer version's, was left as it
/// was; what was missing beside it may have been made.
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
        /// The other process's id, or what else is known of it.
        by: String,
    },
    /// The file system refused.
    #[error("{} cannot be used", path.display())]
    Io {
        /// What could not be used.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not as it was written.
    #[error(
        "{} is damaged ({what}) and was left as it is; move it away to start a new one with larger \
         tokens, or see docs/dev.md for how to restore a copy", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
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

/// A database and what stands beside it in its directory.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) side_files: SideFiles,
    path: PathBuf,
}

impl Opened {
    /// Closes the database and opens it again.
    ///
    /// # Errors
    /// [`OpenError`] says what to do.
    pub(super) fn again(self) -> Result<Self, OpenError> {
        drop(self.database);
        let database = open_database(&self.path)?;
        Ok(Self { database, ..self })
    }

    /// The revision that the database is at.
    ///
    /// # Errors
    /// [`OpenError`] says what to do.
    pub(super) fn revision(&self) -> Result<Revision, OpenError> {
        let read = tables::format_and_revision(&self.database);
        let (_, revision) = read.map_err(|error| unusable(&self.path, error))?;
        revision.ok_or_else(|| damaged(&self.path, WITHOUT_REVISION))
    }
}

/// The files beside the database.
pub(super) struct SideFiles {
    acknowledged: File,
    /// Keeps others from the directory.
    lock: File,
}

impl Drop for SideFiles {
    /// The id may be another process's before long, and people end the one that they read there.
    fn drop(&mut self) {
        if let Err(error) = self.lock.set_len(0) {
            tracing::warn!(%error, "removing the process id failed");
        }
    }
}

impl SideFiles {
    /// Notes a revision whose write is on disk. That it could not be noted is no reason to say
    /// that the write failed.
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

    /// The revision that was noted last; none when nothing was, or nothing that can be read.
    fn recorded(&self) -> Option<Revision> {
        let read = || {
            let mut text = String::new();
            let mut file = &self.acknowledged;
            file.seek(SeekFrom::Start(0))?;
            file.read_to_string(&mut text)?;
            // Behind the first line is at most what something else wrote there.
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

/// Opens the directory, and makes what is missing. A new store's revisions follow `first`, or
/// what was acknowledged in its place before.
///
/// # Errors
/// [`OpenError`] says what to do.
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

/// Where a new file's revisions begin. Its place may be empty because somebody moved a damaged one
/// away.
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

/// A database in memory.
///
/// # Errors
/// None that are known; the library does not say so.
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

/// Others need not see who locks what: what is made here is for its owner alone. A directory that is
/// there keeps the mode that somebody gave it.
fn make_directory(directory: &Path) -> Result<(), OpenError> {
    let missing: Vec<_> = directory
        .ancestors()
        .take_while(|path| !path.as_os_str().is_empty() && !path.exists())
        .collect();
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory).map_err(io_error(directory))?;
    // Each new name has to survive a crash, and is in the directory above.
    for made in missing {
        let above = made.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        if let Err(error) = sync(above) {
            // Who may make a name there need not be allowed to read it.
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

/// A file that is made where it is missing, for nobody else to read.
fn private() -> OpenOptions {
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
    // The new name has to survive a crash too.
    sync(directory).map_err(io_error(directory))
}

fn fill(file: File, first: Revision) -> Result<(), redb::Error> {
    let database = builder().create_with_backend(FileBackend::new(file)?)?;
    tables::create(&database, first)?;
    Ok(database.close()?)
}

/// Reads the whole file and checks a copy of it in memory: each page against its checksum, that
/// it is of a format that this version knows, and that nothing acknowledged is missing.
fn check(path: &Path, acknowledged: Option<Revision>) -> Result<(), OpenError> {
    let bytes = fs::read(path).map_err(io_error(path))?;
    if bytes.is_empty() {
        return Err(damaged(path, "it is empty"));
    }
    // What is damaged in a way that the library did not think of may make it panic.
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

/// What keeps a file that was checked, or is new, from being used: only the last kind is damage.
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
