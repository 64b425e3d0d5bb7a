//! Child processes that never outlive this one, and this process's directory in /tmp, which does
//! not outlive it either.
//!
//! All children join one process group. A guardian shell, in its own group, reads from a pipe whose
//! other end only this process has. When this process ends for any reason (including kill -9), the
//! pipe closes. Then the guardian kills the group and removes the directory. The kernel's
//! parent-death signal does not suffice: it fires when the *thread* that started the child ends,
//! and tests end many threads.

use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::wait::eventually;

/// Kills the group, then removes the directory. The last writes of killed processes may interfere,
/// so it retries.
const GUARD: &str = r#"trap '' INT TERM HUP; cat >/dev/null; kill -s KILL -- "-$1"
for i in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$2" 2>/dev/null && break; sleep 0.2; done"#;

struct Nursery {
    group: i32,
    directory: PathBuf,
    /// Never used, only kept open: closing them is the signal.
    _alive: [ChildStdin; 2],
}

/// Returns this process's directory, in /tmp, or in the directory that `tests/node/enter.sh`
/// removes after a node: there the guardian ends with everything else. Its path is short, because
/// it contains sockets.
pub(crate) fn directory() -> Result<&'static Path> {
    nursery().map(|nursery| nursery.directory.as_path())
}

fn nursery() -> Result<&'static Nursery> {
    static NURSERY: OnceLock<Result<Nursery, String>> = OnceLock::new();
    let nursery = NURSERY.get_or_init(|| open_nursery().map_err(|error| format!("{error:#}")));
    nursery.as_ref().map_err(|error| anyhow::anyhow!("{error}"))
}

fn open_nursery() -> Result<Nursery> {
    let parent = std::env::var_os("LEASEHOLD_NODE_STATE").unwrap_or_else(|| "/tmp".into());
    let directory = tempfile::Builder::new()
        .prefix("lh-")
        .tempdir_in(parent)?
        .keep();
    // A group exists while it has a member. This member waits for the same end.
    let (leader, leader_stdin) = start_waiting(&mut Command::new("cat"))?;
    let group = i32::try_from(leader.id())?;
    let mut guardian = Command::new("sh");
    guardian
        .args(["-c", GUARD, "guardian", &group.to_string()])
        .arg(&directory);
    let (_guardian, guardian_stdin) = start_waiting(&mut guardian)?;
    Ok(Nursery {
        group,
        directory,
        _alive: [leader_stdin, guardian_stdin],
    })
}

fn start_waiting(command: &mut Command) -> Result<(Child, ChildStdin)> {
    let mut child = command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("{} cannot be started", command.get_program().display()))?;
    let stdin = child.stdin.take().context("the child must have a stdin")?;
    Ok((child, stdin))
}

/// A running child. Dropping it kills it.
pub(crate) struct Process {
    name: String,
    child: RwLock<Child>,
    pid: Pid,
    log: PathBuf,
}

impl Process {
    /// Starts a child and appends its output to `log`.
    pub(crate) fn spawn(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let output = OpenOptions::new().create(true).append(true).open(log)?;
        let child = command
            .process_group(nursery()?.group)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("{} cannot be started", command.get_program().display()))?;
        let pid = Pid::from_raw(i32::try_from(child.id())?).context("a child must have an id")?;
        Ok(Self {
            name: name.to_owned(),
            child: RwLock::new(child),
            pid,
            log: log.to_owned(),
        })
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends a signal to it.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        // Only this function reaps it, so the id cannot belong to another process.
        if self.exited()?.is_none() {
            kill_process(self.pid, signal)?;
        }
        Ok(())
    }

    /// Returns its exit status, if it has exited.
    pub(crate) fn exited(&self) -> Result<Option<ExitStatus>> {
        let mut child = self.child.write().unwrap_or_else(PoisonError::into_inner);
        Ok(child.try_wait()?)
    }

    /// Fails with the end of its output if it has exited.
    pub(crate) fn must_run(&self) -> Result<()> {
        let exited = self.exited()?;
        let (name, said) = (&self.name, self.last_words());
        ensure!(
            exited.is_none(),
            "{name} exited unexpectedly, {exited:?}:\n{said}"
        );
        Ok(())
    }

    /// Waits for its exit.
    pub(crate) async fn wait(&self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        eventually(&what, limit, async || self.exited().ok().flatten()).await
    }

    /// Kills it, even if it hangs, and waits for its exit.
    pub(crate) fn kill(&self) -> Result<()> {
        let mut child = self.child.write().unwrap_or_else(PoisonError::into_inner);
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Returns its memory, in KiB.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        self.status_kib("VmRSS:")
    }

    /// Returns the peak of its memory, in KiB.
    pub(crate) fn peak_rss_kib(&self) -> Result<u64> {
        self.status_kib("VmHWM:")
    }

    fn status_kib(&self, name: &str) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number.context("a process must have memory")?.parse()?)
    }

    /// Returns its CPU time, user and kernel, to the hundredth of a second.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()))?;
        // The second field is the name in parentheses, which may contain spaces (proc(5)).
        let (_, fields) = stat.rsplit_once(')').context("a stat must have a name")?;
        let mut ticks = 0;
        for field in fields.split_whitespace().skip(11).take(2) {
            ticks += field.parse::<u64>()?;
        }
        // A tick is 10 ms on every Linux that the tests run on.
        Ok(Duration::from_millis(10 * ticks))
    }

    /// Returns its output so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Returns the end of its output, for an error message.
    pub(crate) fn last_words(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has exited already, or the guardian kills it.
        let _outcome = self.kill();
    }
}
