//! The state directory of a sidecar: a file of records that outlives the process, and a lock that
//! keeps a second process from it.
//!
//! It knows bytes only; what they say, and what has to be on file before which answer, is the
//! agent's. Nothing is synced: the file is to survive the death of the process, and what the death
//! of the machine leaves of it is not to be used (the agent compares boot ids).
//!
//! Invariant: what `read` gives is all that was ever appended since the last `replace`, but for a
//! last record whose `append` had not returned. A file of which that cannot be said is refused as a
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
/// The same while they are written anew.
const UNFINISHED: &str = "state.new";
/// The last file that was refused, for people to look at.
const REFUSED: &str = "state.refused";
/// Locked for as long as a process uses the directory.
const LOCK: &str = "lock";

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not there, or is no directory.
    #[error(
        "the state directory {} does not exist or is not a directory; mount a volume at it (an \
         emptyDir with medium: Memory), or omit --state-dir", directory.display()
    )]
    Missing {
        /// The directory.
        directory: PathBuf,
    },
    /// The file system refused.
    #[error(
        "{} cannot be used; --state-dir needs a directory that this user may write to", path.display()
    )]
    Io {
        /// What could not be used.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The file, and the lock on its directory for as long as this lives.
pub struct StateFile {
    directory: PathBuf,
    /// None until the first record, and once the file was given up.
    open: Option<Open>,
    _lock: File,
}

/// A file to append to.
struct Open {
    file: File,
    chain: Chain,
    records: u64,
    bytes: u64,
}

impl StateFile {
    /// Locks a directory; none when another process has it.
    ///
    /// # Errors
    /// [`OpenError`] says what to do.
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
        // Found out now and not with the first lease. What was left unfinished is nobody's.
        let path = directory.join(UNFINISHED);
        let file = private().truncate(true).open(&path);
        file.map_err(io_error(&path))?;
        fs::remove_file(&path).map_err(io_error(&path))?;
        Ok(Some(Self {
            directory: directory.to_owned(),
            open: None,
            _lock: lock,
        }))
    }

    /// Reads what an earlier process left, and goes on behind it.
    ///
    /// # Errors
    /// [`OpenError`] when the file is there and cannot be read or written.
    pub fn read(&mut self) -> Result<Past, OpenError> {
        let path = self.path(FILE);
        // Reading a pipe would wait for somebody to write to it.
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
        // A last record that was cut by the end of its writer was never answered by anything.
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

    /// Written under another name and put in the place of the old one: at any moment one of both
    /// is there.
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
            // It takes the space that the next records need.
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

    /// Each of the ways works where another may fail: a full disk still lets go of what it has.
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
    /// First the record and then the count: a file with one record more than it counts was cut
    /// between the two, one with less has lost something.
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

/// A file that is made where it is missing, for nobody else to read.
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
