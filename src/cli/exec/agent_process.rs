//! The third process for the first one: its start, and its end.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};

use super::link::{Link, Message};
use super::{AGENT, OWN_BINARY, tree};

/// How long its end may take. It is longer than an agent needs while the API server does not answer.
const END_LIMIT: Duration = Duration::from_secs(20);
/// The same after a loss, which leaves it little to release. It may be stopped.
const END_AFTER_LOSS: Duration = Duration::from_secs(2);

/// The process with the agent. It ends when no process has its link.
pub(super) struct AgentProcess {
    pub(super) pid: Pid,
    descriptor: OwnedFd,
    link: Link,
}

impl AgentProcess {
    /// Starts it with the same command line, in a process group of its own. Its socket accepts connections
    /// from now on.
    pub(super) fn start(socket: &Path) -> anyhow::Result<Self> {
        let (link, other) = Link::pair()?;
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let agent = Command::new(OWN_BINARY)
            .arg0("leasehold")
            .arg(AGENT)
            .args(std::env::args_os().skip(2))
            .stdin(Stdio::from(other.into_fd()))
            // A reader of the command's output waits for all that have it.
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pid = Pid::from_child(&agent);
        // Before it can be reaped, so that it is this process's.
        let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
        link.send(&Message::Listener(listener.into()))?;
        Ok(Self {
            pid,
            descriptor,
            link,
        })
    }

    /// Returns its link for the keeper: the agent continues until both processes have ended.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        self.link.share()
    }

    /// Lets it end, and waits for that. Then kills what is left of it, such as a credential plugin that hangs:
    /// that would keep standard error open. All other users of the link, and the command, must have ended.
    pub(super) fn end(self, is_lost: bool) -> io::Result<()> {
        drop(self.link);
        let limit = if is_lost { END_AFTER_LOSS } else { END_LIMIT };
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        poll(
            &mut [PollFd::new(&self.descriptor, PollFlags::IN)],
            Some(&limit),
        )?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // If it was reaped before, its group may be another one's.
        if waitid(WaitId::PidFd(self.descriptor.as_fd()), options).is_ok() {
            tree::kill_group(self.pid);
        }
        Ok(())
    }
}
