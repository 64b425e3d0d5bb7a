//! The state directory of a sidecar: a file of records that outlives the process, and a lock that
//! excludes a second process.
//!
//! It only knows bytes. The agent defines their content, and what must be on file before which
//! response. Nothing is synced: the file must survive a crash of the process. After a crash of
//! the machine it is not used (the agent compares boot ids).
//!
//! Invariant: `read` returns everything that was appended since the last `replace`, except possibly
//! a last record whose `append` had not returned. A file without this property is rejected as a
//! whole.

mod frame;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::agent::{Journal, Past};
use frame::{Chain, Framed};

/// The records.
const FILE: &str = "state";
/// The name of the file while it is rewritten.
const UNFINISHED: &str = "state.new";
/// The last rejected file, for inspection.
const REFUSED: &str = "state.refused";
/// Locked as long as a process uses the directory.
const LOCK: &str = "lock";

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It does not exist, or is not a directory.
    #[error(
        "the state directory {} does not exist or is not a directory; mount a volume at it (an \
         emptyDir with medium: Memory), or omit --state-dir", directory.display()
    )]
    Missing {
        /// The directory.
        directory: PathBuf,
    },
    /// The file system returned an error.
    #[error(
        "{} cannot be used; --state-dir needs a directory that this user may write to", path.display()
    )]
    Io {
        /// What cannot be used.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// The file, and the lock on its directory.
pub struct StateFile {
    directory: PathBuf,
    /// `None` until the first record, and after the file was discarded.
    open: Option<Open>,
    lock: File,
}

impl Drop for StateFile {
    /// To close the file is not enough: a process that is being started has a copy of it for a
    /// moment.
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, "unlocking the state directory failed");
        }
    }
}

/// An open file to append to.
struct Open {
    file: File,
    chain: Chain,
    records: u64,
    bytes: u64,
}

impl StateFile {
    /// Locks a directory; `None` if another process has locked it.
    ///
    /// # Errors
    /// [`OpenError`], which says what to do.
    pub fn open(directory: &Path) -> Result<Option<Self>, OpenError> {
        if !directory.is_dir() {
            return Err(OpenError::Missing {
                directory: directory.to_owned(),
            });
        }
        let path = directory.join(LOCK);
        let lock = private().open(&path).map_err(io_error(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(io_error(&path)(error)),
        }
        // Checks that the directory is writable now, and not at the first lease. An unfinished file
        // has no owner.
        let path = directory.join(UNFINISHED);
        let file = private().truncate(true).open(&path);
        file.map_err(io_error(&path))?;
        fs::remove_file(&path).map_err(io_error(&path))?;
        Ok(Some(Self {
            directory: directory.to_owned(),
            open: None,
            lock,
        }))
    }

    /// Reads the records of an earlier process, and continues after them.
    ///
    /// # Errors
    /// [`OpenError`] if the file exists and cannot be read or written.
    pub fn read(&mut self) -> Result<Past, OpenError> {
        let path = self.path(FILE);
        // Reading a pipe would wait for a writer.
        let is_other = fs::metadata(&path).is_ok_and(|found| !found.is_file());
        if is_other {
            let error = io::Error::other("it is no regular file; remove it");
            return Err(io_error(&path)(error));
        }
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Past::Nothing),
            Err(error) => return Err(io_error(&path)(error)),
        };
        let framed = match Framed::parse(&bytes) {
            Ok(framed) => framed,
            Err(damage) => return Ok(Past::Damaged(damage.to_string())),
        };
        let file = private().open(&path).map_err(io_error(&path))?;
        // A truncated last record was never acknowledged.
        file.set_len(framed.bytes).map_err(io_error(&path))?;
        let records = framed.records.len() as u64;
        frame::write_count(&file, records).map_err(io_error(&path))?;
        self.open = Some(Open {
            file,
            chain: framed.chain,
            records,
            bytes: framed.bytes,
        });
        let records = framed.records.into_iter().map(<[u8]>::to_vec);
        Ok(Past::Records(records.collect()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Journal for StateFile {
    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let open = self.open.as_mut().ok_or(io::ErrorKind::NotFound)?;
        open.append(record)
    }

    /// Writes another file and renames it: at any time one of both exists.
    fn replace(
        &mut self,
        records: &mut dyn Iterator<Item = io::Result<Vec<u8>>>,
    ) -> io::Result<()> {
        let composed = frame::compose(records)?;
        let unfinished = self.path(UNFINISHED);
        let finished = write_new(&unfinished, &composed.text).and_then(|file| {
            fs::rename(&unfinished, self.path(FILE))?;
            Ok(file)
        });
        if finished.is_err()
            && let Err(error) = fs::remove_file(&unfinished)
            && error.kind() != io::ErrorKind::NotFound
        {
            // It occupies the space that the next records need.
            tracing::warn!(%error, file = %unfinished.display(), "removing unfinished file failed");
        }
        self.open = Some(Open {
            file: finished?,
            chain: composed.chain,
            records: composed.records,
            bytes: composed.text.len() as u64,
        });
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.bytes)
    }

    /// Each way works where the other may fail: a full disk can still truncate and remove.
    fn void(&mut self) -> io::Result<()> {
        let emptied = self.open.take().map(|open| open.file.set_len(0));
        match fs::remove_file(self.path(FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => emptied.unwrap_or(Err(error)),
            _ => Ok(()),
        }
    }

    fn set_aside(&mut self) -> io::Result<PathBuf> {
        self.open = None;
        let refused = self.path(REFUSED);
        fs::rename(self.path(FILE), &refused)?;
        Ok(refused)
    }
}

impl Open {
    /// Writes the record, then the count. A file with one record more than its count was
    /// interrupted in between; one with fewer has lost records.
    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let mut line = Vec::with_capacity(record.len() + frame::OVERHEAD);
        self.chain.frame(record, &mut line);
        self.file.write_all_at(&line, self.bytes)?;
        self.bytes += line.len() as u64;
        self.records += 1;
        frame::write_count(&self.file, self.records)
    }
}

fn write_new(path: &Path, text: &[u8]) -> io::Result<File> {
    let file = private().truncate(true).open(path)?;
    file.write_all_at(text, 0)?;
    Ok(file)
}

/// Returns options for a file that is created if it is missing, only for its owner.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    options
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io {
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests;
