//! The Unix socket of the API: it is created if no process uses its path, and removed when its
//! server ends.
//!
//! The permissions of its directory, and its mode, control who may connect. Invariant: a socket in use
//! is not touched, and neither is a file that is not a socket.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tokio::net::{UnixListener, UnixStream};

/// The kernel's limit, less the zero byte at the end (unix(7)).
const PATH_MAX_BYTES: usize = 107;
/// The mode of a socket for other users: apps run as others.
pub(super) const ALL_USERS: u32 = 0o666;
/// The mode of a socket beside private files.
pub(super) const OWN_USER: u32 = 0o600;

/// A listener and its file.
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
}

/// The file of a socket. Dropping it removes the file, unless another one has replaced it.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode, which identify the file.
    identity: (u64, u64),
}

/// Checks the length of a path.
pub(super) fn path(path: PathBuf) -> Result<PathBuf, String> {
    let bytes = path.as_os_str().len();
    if bytes > PATH_MAX_BYTES {
        return Err(format!(
            "the path has {bytes} bytes, and a socket's can have {PATH_MAX_BYTES}; use a shorter one"
        ));
    }
    Ok(path)
}

/// Binds a socket of this mode, and replaces a stale one.
pub(super) async fn bind(path: &Path, mode: u32) -> anyhow::Result<Socket> {
    let bound = async {
        let _alone = lock_directory(path)?;
        remove_stale(path).await?;
        let listener = UnixListener::bind(path).map_err(cannot_bind)?;
        // Until then only the own user can connect.
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        let file = SocketFile {
            identity: identity(path)?,
            path: path.to_owned(),
        };
        anyhow::Ok(Socket { listener, file })
    };
    bound
        .await
        .with_context(|| format!("cannot listen on the Unix socket {}", path.display()))
}

/// Without the lock, two processes that start at once would find the same stale file, and the
/// second one would remove the new file of the first.
fn lock_directory(path: &Path) -> anyhow::Result<File> {
    let parent = path.parent().filter(|path| !path.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new("."))).map_err(cannot_bind)?;
    // Locked until the socket is bound.
    directory.lock()?;
    Ok(directory)
}

/// Removes a socket whose process ended without removing it.
async fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        bail!("the path exists and is not a socket; remove it, or choose another --unix-socket");
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            tracing::info!(file = %path.display(), "replacing stale socket");
            Ok(fs::remove_file(path)?)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        // A socket that is busy, or without permission, may be in use.
        _ => bail!("another process uses it; stop that process, or choose another --unix-socket"),
    }
}

fn cannot_bind(error: io::Error) -> anyhow::Error {
    let advice = match error.kind() {
        ErrorKind::NotFound => "its directory does not exist; create it, or change --unix-socket",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "this process may not write to its directory"
        }
        _ => "choose another --unix-socket",
    };
    anyhow::Error::new(error).context(advice)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

impl SocketFile {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = identity(&self.path).is_ok_and(|found| found == self.identity);
        if is_ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, file = %self.path.display(), "removing socket failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_is_world_writable_and_removed_with_its_server() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let socket = bind(&path, ALL_USERS).await.unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, ALL_USERS);
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        // Its file stays, as after a kill -9.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let socket = bind(&path, ALL_USERS).await.unwrap();
        let Err(error) = bind(&path, ALL_USERS).await else {
            unreachable!("a live socket must be refused");
        };
        let said = format!("{error:#}");
        assert!(said.contains("another process uses it"), "{said}");
        UnixStream::connect(&path).await.unwrap();
        drop(socket);
    }

    #[test]
    fn one_of_many_concurrent_starts_takes_over_a_stale_socket() {
        let directory = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let path = directory.path().join(round.to_string());
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let start = || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                let bound = runtime.block_on(bind(&path, ALL_USERS)).ok();
                bound.map(|socket| (runtime, socket))
            };
            let bound = std::thread::scope(|scope| {
                let starters: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                let bound = starters.into_iter().map(|starter| starter.join().unwrap());
                bound.collect::<Vec<_>>()
            });
            assert_eq!(bound.iter().flatten().count(), 1);
            assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
        }
    }

    #[tokio::test]
    async fn file_that_replaced_a_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let first = bind(&path, ALL_USERS).await.unwrap();
        // Kept under another name, so that its inode number is not reused.
        fs::rename(&path, directory.path().join("old")).unwrap();
        let second = bind(&path, ALL_USERS).await.unwrap();
        drop(first);
        assert!(path.exists());
        drop(second);
        fs::write(&path, "notes").unwrap();
        let Err(error) = bind(&path, ALL_USERS).await else {
            unreachable!("a file must be refused");
        };
        assert!(format!("{error:#}").contains("is not a socket"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
        let Err(error) = bind(&directory.path().join("no/s"), ALL_USERS).await else {
            unreachable!("a directory that is missing must be refused");
        };
        assert!(format!("{error:#}").contains("its directory does not exist"));
    }

    #[test]
    fn a_path_is_as_long_as_the_kernel_takes() {
        assert!(super::path("x".repeat(107).into()).is_ok());
        let said = super::path("x".repeat(108).into()).unwrap_err();
        assert!(said.contains("108 bytes"), "{said}");
    }
}
