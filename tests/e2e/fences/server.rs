//! Servers of the stores, each with a directory and a user of its own: most refuse to run as root.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::harness::{PATIENCE, Process, directory, eventually};

/// The user `nobody`, which owns no file of the system.
const UNPRIVILEGED: u32 = 65534;

/// Returns the command of a server for its directory.
type CommandIn = dyn Fn(&Path) -> Result<Command> + Send + Sync;

/// A server that is killed and started again in its directory. Dropping it kills it.
pub(super) struct Daemon {
    directory: PathBuf,
    command: Box<CommandIn>,
    process: Mutex<Option<Process>>,
}

impl Daemon {
    /// Returns a server that does not run yet.
    pub(super) fn new(
        directory: PathBuf,
        command: impl Fn(&Path) -> Result<Command> + Send + Sync + 'static,
    ) -> Self {
        Self {
            directory,
            command: Box::new(command),
            process: Mutex::new(None),
        }
    }

    /// Returns its directory, which has its socket.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts it and waits until it accepts a connection.
    pub(super) async fn start<T>(&self, connect: impl AsyncFn() -> Result<T>) -> Result<()> {
        let started = eventually("a server that accepts connections", PATIENCE, async || {
            // What a killed server leaves behind for a moment, such as a lock on a file, ends the next one at once.
            if !self.is_running()
                && let Err(error) = self.spawn()
            {
                return Some(Err(error));
            }
            connect().await.ok()?;
            // Another server may have answered at a port that this one could not bind.
            self.is_running().then_some(Ok(()))
        });
        let log = || std::fs::read_to_string(self.log()).unwrap_or_default();
        started.await.map_err(|error| error.context(log()))?
    }

    /// Kills it without a warning (SIGKILL).
    pub(super) fn kill(&self) -> Result<()> {
        let process = self
            .process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        process.context("a server that runs")?.kill()
    }

    fn is_running(&self) -> bool {
        let process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let exited = process.as_ref().map(Process::exited);
        matches!(exited, Some(Ok(None)))
    }

    fn spawn(&self) -> Result<()> {
        let mut command = (self.command)(&self.directory)?;
        let process = Process::spawn("server", &mut command, &self.log())?;
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(())
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }
}

/// Returns a new directory, which the unprivileged user owns if the tests run as root.
pub(super) fn new_directory(name: &str) -> Result<PathBuf> {
    static CREATED: AtomicU32 = AtomicU32::new(0);

    let parent = directory()?;
    // The unprivileged user must be able to enter it, and not to list it.
    std::fs::set_permissions(parent, Permissions::from_mode(0o711))?;
    let number = CREATED.fetch_add(1, Ordering::Relaxed);
    let path = parent.join(format!("{name}-{number}"));
    std::fs::create_dir(&path)?;
    if is_root() {
        chown(&path, Some(UNPRIVILEGED), Some(UNPRIVILEGED))?;
    }
    std::fs::set_permissions(&path, Permissions::from_mode(0o700))?;
    Ok(path)
}

/// Returns a command that does not run as root.
pub(super) fn unprivileged(program: impl AsRef<OsStr>) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let id = UNPRIVILEGED.to_string();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
        .arg(program);
    command
}

/// Runs a command to its end and returns what it prints.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let output = command.output();
    let program = command.get_program().display().to_string();
    let output = output.with_context(|| format!("{program} cannot be started"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {error}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the directory with a store's migrations, as users get them.
pub(super) fn migrations(store: &str) -> PathBuf {
    let fences = Path::new(env!("CARGO_MANIFEST_DIR")).join("fences");
    fences.join(store)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
