//! The file that exists once the lease is lost, for scripts that check it.
//!
//! The first process creates its directory, and removes it. The second one does if the first was
//! killed.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use crate::cli::unix_socket;

/// The variable with the path of the file.
const VARIABLE: &str = "LEASEHOLD_LOST_FILE";
/// The socket of the agent, if exec has one of its own.
const SOCKET: &str = "agent";
/// How long SIGTERM waits for the file.
const WRITTEN_WITHIN: Duration = Duration::from_millis(100);

/// The directory of the file, for this user alone. Dropping it removes it.
pub(super) struct Directory(PathBuf);

/// The file.
pub(super) struct LostFile(PathBuf);

impl Directory {
    /// Creates the directory, where a socket can have its path if it must.
    pub(super) fn create(for_socket: bool) -> anyhow::Result<Self> {
        let random = fastrand::u64(..);
        let name = format!("leasehold-exec-{}-{random:016x}", std::process::id());
        let create = |parent: &Path| {
            // The command may change its directory. An empty TMPDIR is the current directory.
            let path = std::path::absolute(parent.join(&name))?;
            if for_socket {
                // It becomes a URL.
                let text = path.to_str().ok_or(std::io::ErrorKind::InvalidFilename)?;
                unix_socket::path(Path::new(text).join(SOCKET)).map_err(std::io::Error::other)?;
            }
            fs::DirBuilder::new().mode(0o700).create(&path)?;
            Ok(Self(path))
        };
        let parent = std::env::temp_dir();
        // A container without a writable file system has /dev/shm, whose path is short, too.
        let created = create(&parent);
        created
            .or_else(|error| create(Path::new("/dev/shm")).map_err(|_same: std::io::Error| error))
            .with_context(|| {
                format!(
                    "cannot create a directory in {} (set TMPDIR to one that can be written)",
                    parent.display()
                )
            })
    }

    /// Returns the path of a socket in it.
    pub(super) fn socket(&self) -> PathBuf {
        self.0.join(SOCKET)
    }

    /// Returns the variable for the second process and the command.
    pub(super) fn variable(&self) -> (&'static str, PathBuf) {
        (VARIABLE, self.0.join("lost"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A directory that a user removed is not an error.
        let _removed = fs::remove_dir_all(&self.0);
    }
}

impl LostFile {
    /// Returns the file whose directory the first process created.
    pub(super) fn of_first_process() -> anyhow::Result<Self> {
        let path = std::env::var_os(VARIABLE).context("no path of the loss file")?;
        Ok(Self(path.into()))
    }

    /// Creates the file. Another thread does: a slow disk must not delay SIGKILL.
    pub(super) fn create(&self, reason: &str) {
        let (path, text) = (self.0.clone(), format!("{reason}\n"));
        let (written, is_written) = mpsc::channel();
        let writes = thread::Builder::new().spawn(move || {
            if let Err(error) = fs::write(&path, text) {
                tracing::error!(%error, file = %path.display(), "loss file not written");
            }
            // The receiver may not have waited for it.
            let _late = written.send(());
        });
        match writes {
            // A handler of SIGTERM finds the file, unless the disk is slow.
            Ok(_) => drop(is_written.recv_timeout(WRITTEN_WITHIN)),
            Err(error) => tracing::error!(%error, "loss file not written"),
        }
    }

    /// Removes the directory of the file.
    pub(super) fn remove_directory(&self) {
        if let Some(directory) = self.0.parent() {
            let _removed = fs::remove_dir_all(directory);
        }
    }
}
