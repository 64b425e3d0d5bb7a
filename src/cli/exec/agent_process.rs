//! The third process for the first one: its start, and its end.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::link::{Link, Message};
use super::{AGENT, OWN_BINARY, tree};

/// How long its end may take. It is longer than an agent needs while the API server does not answer.
const END_LIMIT: Duration = Duration::from_secs(20);

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

    /// Lets it end, and waits for that. Kills it if it does not: a process that is left would keep standard
    /// error open. All other users of the link, and the command, must have ended.
    pub(super) fn end(self) -> io::Result<()> {
        drop(self.link);
        let limit = Timespec::try_from(END_LIMIT).map_err(io::Error::other)?;
        let mut ended = [PollFd::new(&self.descriptor, PollFlags::IN)];
        if poll(&mut ended, Some(&limit))? == 0 {
            tree::kill_group(self.pid);
        }
        Ok(())
    }
}
