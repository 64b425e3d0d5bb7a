//! `leasehold exec` as a separate process: its two processes, the command and what it starts.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::kubectl::Kubeconfig;
use super::process::{Process, directory};
use super::sidecar::Sidecar;
use super::wait::{PATIENCE, eventually, now};

/// A running `leasehold exec`. Dropping it kills it, its command and what that started.
pub(crate) struct Exec {
    front: Process,
}

/// The processes of an exec whose command runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pids {
    /// The process that the user started.
    pub(crate) front: i32,
    /// The process that holds the lock.
    pub(crate) keeper: i32,
    /// The process with the agent, without a sidecar.
    pub(crate) agent: Option<i32>,
    /// The command.
    pub(crate) command: i32,
}

impl Exec {
    /// Starts an exec of a shell script at a sidecar. `binary` is ours; the including test knows its
    /// path.
    pub(crate) fn start(
        binary: &str,
        sidecar: &Sidecar,
        flags: &[&str],
        script: &str,
    ) -> Result<Self> {
        let flags = [&["--url", &*sidecar.url], flags].concat();
        Self::start_with(binary, &flags, script)
    }

    /// Starts an exec without a sidecar, as the user of a kubeconfig.
    pub(crate) fn alone(
        binary: &str,
        user: &Kubeconfig,
        flags: &[&str],
        script: &str,
    ) -> Result<Self> {
        let kubeconfig = user.path.to_string_lossy();
        let flags = [&["--kubeconfig", &*kubeconfig], flags].concat();
        Self::start_with(binary, &flags, script)
    }

    fn start_with(binary: &str, flags: &[&str], script: &str) -> Result<Self> {
        let mut command = Command::new(binary);
        command
            .args(["exec", "--log-format", "json"])
            .args(flags)
            .args(["--", "sh", "-c", script])
            // An exec that is killed leaves a directory there.
            .env("TMPDIR", directory()?);
        let front = Process::spawn("leasehold exec", &mut command, &own_file("exec")?)?;
        Ok(Self { front })
    }

    /// Waits until the command runs, and returns the processes.
    pub(crate) async fn pids(&self) -> Result<Pids> {
        let front = self.front.id();
        let running = eventually("a command to run", PATIENCE, async || {
            if self.front.exited().ok()?.is_some() {
                return Some(None);
            }
            let (agent, keeper) = (child(front, "exec-agent"), child(front, "exec-keeper")?);
            let (command, _) = *children(keeper).ok()?.first()?;
            // Until then it is a process of exec itself.
            let program = std::fs::read_to_string(format!("/proc/{command}/comm")).ok()?;
            (program.trim() == "sh").then_some(Some(Pids {
                front,
                keeper,
                agent,
                command,
            }))
        });
        running
            .await?
            .with_context(|| format!("exec ended: {}", self.front.last_words()))
    }

    /// Returns the rest of the first line of its output that begins with `name` and a space.
    pub(crate) fn printed(&self, name: &str) -> Option<String> {
        let log = self.front.log();
        let mut lines = log.lines();
        let rest = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        Some(rest.to_owned())
    }

    /// Waits until the command prints a line that begins with `name`, and returns the rest of it.
    pub(crate) async fn until_printed(&self, name: &str) -> Result<String> {
        let what = format!("a command to print {name}");
        let printed = eventually(&what, PATIENCE, async || self.printed(name)).await;
        printed.with_context(|| self.front.last_words())
    }

    /// Waits until it has logged this message.
    pub(crate) async fn until_logged(&self, message: &str) -> Result<()> {
        let what = format!("an exec to log {message:?}");
        let logged = eventually(&what, PATIENCE, async || {
            self.front.log().contains(message).then_some(())
        });
        logged.await.with_context(|| self.front.last_words())
    }

    /// Returns whether it has ended.
    pub(crate) fn is_over(&self) -> Result<bool> {
        Ok(self.front.exited()?.is_some())
    }

    /// Waits for its end, which must have this exit code.
    pub(crate) async fn ends_with(&self, code: i32) -> Result<()> {
        let status = self.front.wait(PATIENCE).await;
        let status = status.with_context(|| self.front.last_words())?;
        ensure!(
            status.code() == Some(code),
            "expected {code}, got {status}: {}",
            self.front.last_words()
        );
        Ok(())
    }

    /// Returns the process that holds the lock, if it runs.
    pub(crate) fn keeper(&self) -> Option<i32> {
        child(self.front.id(), "exec-keeper")
    }

    /// Kills the process that the user started, and only that.
    pub(crate) fn kill9_front(&self) -> Result<()> {
        self.front.kill()
    }

    /// Stops all its processes, and returns them.
    pub(crate) fn stop(&self) -> Result<Vec<i32>> {
        stop_tree(self.front.id())
    }

    /// Returns its output so far.
    pub(crate) fn log(&self) -> String {
        self.front.log()
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // The keeper and the command are not in the group that the guardian kills. They end with
        // their first process; a failed test must not wait for that.
        let started = descendants(self.front.id()).unwrap_or_default();
        let _outcome = self.front.kill();
        for pid in started {
            let _outcome = signal(pid, Signal::KILL);
        }
    }
}

/// Returns the path of a new file of this process.
pub(crate) fn own_file(name: &str) -> Result<PathBuf> {
    static CREATED: AtomicU32 = AtomicU32::new(0);

    let number = CREATED.fetch_add(1, Ordering::Relaxed);
    Ok(directory()?.join(format!("{name}-{number}.log")))
}

/// Sends a signal to a process, unless it is gone.
pub(crate) fn signal(pid: i32, signal: Signal) -> Result<()> {
    match kill_process(Pid::from_raw(pid).context("a process id")?, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Stops a process and all its descendants. A stopped process starts no other one, so none is missed.
pub(crate) fn stop_tree(root: i32) -> Result<Vec<i32>> {
    let mut stopped = vec![];
    let mut found = vec![root];
    while !found.is_empty() {
        for pid in &found {
            signal(*pid, Signal::STOP)?;
        }
        stopped.append(&mut found);
        found = descendants(root)?;
        found.retain(|pid| !stopped.contains(pid));
    }
    Ok(stopped)
}

/// Returns whether a process is gone, or a zombie.
pub(crate) fn is_dead(pid: i32) -> bool {
    stat(pid).is_none_or(|(_, state)| matches!(state, 'Z' | 'X'))
}

/// Waits until all of these processes are dead, and returns the moment when each was observed dead.
/// The kernel reports each end to a thread that only waits: polling would load the machine.
pub(crate) async fn until_dead(pids: &[i32], limit: Duration) -> Result<Vec<Moment>> {
    let mut running = vec![];
    let mut died = vec![None; pids.len()];
    for (index, pid) in pids.iter().enumerate() {
        let pid = Pid::from_raw(*pid).context("a process id")?;
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => running.push((index, descriptor)),
            Err(Errno::SRCH) => died[index] = Some(now()),
            Err(error) => return Err(error.into()),
        }
    }
    let deadline = now().after(limit);
    let all = tokio::task::spawn_blocking(move || {
        while !running.is_empty() {
            ensure!(now() < deadline, "{} processes do not end", running.len());
            let mut sources: Vec<_> = running.iter().map(|(_, fd)| readable(fd)).collect();
            let timeout = Timespec::try_from(deadline.since(now()))?;
            poll(&mut sources, Some(&timeout))?;
            let observed = now();
            let ended: Vec<_> = sources.iter().map(|s| !s.revents().is_empty()).collect();
            let mut ended = ended.into_iter();
            running.retain(|(index, _)| {
                let has_ended = ended.next() == Some(true);
                if has_ended {
                    died[*index] = Some(observed);
                }
                !has_ended
            });
        }
        Ok(died)
    });
    Ok(all.await??.into_iter().flatten().collect())
}

fn readable(descriptor: &OwnedFd) -> PollFd<'_> {
    PollFd::new(descriptor, PollFlags::IN)
}

/// Returns the running descendants of a process.
pub(crate) fn descendants(root: i32) -> Result<Vec<i32>> {
    let mut found = vec![];
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (pid, state) in children(parent)? {
            if !matches!(state, 'Z' | 'X') {
                found.push(pid);
            }
            parents.push(pid);
        }
    }
    Ok(found)
}

/// Returns the children of a process with their states.
fn children(parent: i32) -> Result<Vec<(i32, char)>> {
    let mut found = vec![];
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some((its_parent, state)) = stat(pid)
            && its_parent == parent
        {
            found.push((pid, state));
        }
    }
    Ok(found)
}

/// Returns the child of a process that has this argument.
fn child(parent: i32, argument: &str) -> Option<i32> {
    let mut children = children(parent).ok()?.into_iter().map(|(pid, _)| pid);
    children.find(|pid| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').any(|one| one == argument)
    })
}

/// Returns the parent and the state of a process.
fn stat(pid: i32) -> Option<(i32, char)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, which may contain spaces (proc(5)).
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}

/// Returns until when a lease is valid by the next answer of an agent: at least until then, because the
/// validity counts from before the request. `url` is the `LEASEHOLD_URL` of the command.
pub(crate) async fn deadline(url: &str, lease: &str) -> Result<Moment> {
    let socket = url.strip_prefix("unix://");
    let client = reqwest::Client::builder().no_proxy();
    let client = match socket {
        Some(path) => client.unix_socket(path),
        None => client,
    };
    let client = client.build()?;
    let server = if socket.is_some() {
        "http://localhost"
    } else {
        url
    };
    let asked = now();
    let answer = client
        .get(format!("{server}/v1/locks/{lease}"))
        .send()
        .await?;
    let answer: serde_json::Value = answer.error_for_status()?.json().await?;
    let valid_for = answer["validForMs"].as_u64().context("validForMs")?;
    Ok(asked.after(Duration::from_millis(valid_for)))
}
