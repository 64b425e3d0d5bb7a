//! The locks of a data directory (`--data-dir`), without a service.
//!
//! The first exec starts a server for them. Others share it, and it ends with the last of them. Two locks
//! of files (flock(2)) decide that, without a timer:
//! - The store locks its directory, so a second server ends at once.
//! - Each exec shares the lock of the file `users` until none of its processes is left. The server ends when
//!   it gets that lock for itself, and keeps it to its end.
//!
//! So an exec that has its share finds a server that stays, or starts one. A server that a signal ends, and
//! `leasehold dev`, end also while they are used: execs that wait start the next one.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Pid;

use super::local_server::StartReport;
use super::{OWN_BINARY, SERVER};
use crate::cli::client::Server;
use crate::cli::{dev, unix_socket};
use crate::clock::{Clock as _, SystemClock};
use crate::store::embedded;

/// Locked by the execs that use the directory, together, or by the server while it ends.
const USERS: &str = "users";
/// For how long another process may take to serve, or to end: longer than a server waits for connections
/// and releases at its end (11 s).
const OTHER_LIMIT: Duration = Duration::from_secs(20);
/// The pause before what another process does is read again.
const PAUSE: Duration = Duration::from_millis(50);

/// The server of a data directory. It stays until this, and what shares it, is dropped.
pub(super) struct ServerInUse {
    pub(super) server: Server,
    directory: PathBuf,
    users: File,
}

impl ServerInUse {
    /// Finds the server of a directory, or starts it.
    pub(super) fn find_or_start(directory: &Path) -> anyhow::Result<Self> {
        let found = || {
            embedded::create_directory(directory)?;
            let users = users(directory)?;
            share(&users)?;
            let socket = dev::socket(directory);
            serve_at(directory, &socket)?;
            let server = Server::Unix(socket);
            let directory = directory.to_owned();
            anyhow::Ok(Self {
                server,
                directory,
                users,
            })
        };
        found().with_context(|| format!("the data directory {}", directory.display()))
    }

    /// Starts a server instead of one that was ended. If another exec was faster, it ends at once.
    pub(super) fn start_again(&self) -> io::Result<Pid> {
        let server = command(&self.directory).stdout(Stdio::null()).spawn()?;
        Ok(Pid::from_child(&server))
    }

    /// Returns a descriptor for the second process, which may outlive this one.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.users.try_clone()?.into())
    }
}

/// Returns the file that the users of a directory lock.
pub(super) fn users(directory: &Path) -> io::Result<File> {
    embedded::private().open(directory.join(USERS))
}

fn share(users: &File) -> anyhow::Result<()> {
    let started = SystemClock.now();
    loop {
        match users.try_lock_shared() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(error)) => return Err(error.into()),
            Err(TryLockError::WouldBlock) => {}
        }
        if SystemClock.now().since(started) >= OTHER_LIMIT {
            bail!("its server does not end; end that process, whose id is in the file `lock`");
        }
        sleep(PAUSE);
    }
}

/// Returns when a server accepts connections: one that is there, or a new one.
fn serve_at(directory: &Path, socket: &Path) -> anyhow::Result<()> {
    let started = SystemClock.now();
    while UnixStream::connect(socket).is_err() {
        match start(directory).context("its server cannot be started")? {
            StartReport::Serves => return Ok(()),
            StartReport::Failed(why) => bail!("its server did not start: {why}"),
            // It may still start, or end.
            StartReport::InUse(why) => {
                if SystemClock.now().since(started) >= OTHER_LIMIT {
                    bail!("{why}; or give the URL of that process by --url");
                }
            }
        }
        sleep(PAUSE);
    }
    Ok(())
}

/// Returns the command of a server, which reports its start on standard output, and then has a log of its own.
fn command(directory: &Path) -> Command {
    let mut command = Command::new(OWN_BINARY);
    command
        .arg0("leasehold")
        .arg(SERVER)
        .arg("--data-dir")
        .arg(directory)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Starts a server, and returns its report.
fn start(directory: &Path) -> anyhow::Result<StartReport> {
    let mut server = command(directory).stdout(Stdio::piped()).spawn()?;
    let mut report = String::new();
    let mut stdout = server.stdout.take().context("no standard output")?;
    // It closes this when it serves, or ends.
    stdout.read_to_string(&mut report)?;
    if let Some(report) = StartReport::parse(&report) {
        if report != StartReport::Serves {
            server.wait()?;
        }
        return Ok(report);
    }
    bail!("it ended with {}", server.wait()?)
}

/// Parses a data directory, in which a socket must have room.
pub(super) fn data_dir(text: &str) -> Result<PathBuf, String> {
    let path = std::path::absolute(text).map_err(|error| error.to_string())?;
    if path.exists() && !path.is_dir() {
        return Err("it is not a directory; give another path".into());
    }
    let socket = unix_socket::path(dev::socket(&path));
    socket.map_err(|_too_long| "its path is too long: use at most 100 bytes".to_owned())?;
    Ok(path)
}
