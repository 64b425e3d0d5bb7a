//! The third process, as the first one sees it: its start, and its end.

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
use super::{AGENT, OWN_BINARY};

/// How long its end may take: it ends its session.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The process with the agent. It ends when no process has its link.
pub(super) struct AgentProcess {
    pub(super) pid: Pid,
    link: Link,
}

impl AgentProcess {
    /// Starts it with the same command line, in a process group of its own. It listens on the socket, which
    /// accepts connections from now on.
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
        link.send(&Message::Listener(listener.into()))?;
        let pid = Pid::from_child(&agent);
        Ok(Self { pid, link })
    }

    /// Returns its link for another process, so that it lives as long as that.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        self.link.share()
    }

    /// Lets it end, and waits for that. All other users of the link must have ended.
    pub(super) fn end(self) -> anyhow::Result<()> {
        // An agent that has ended already has no descriptor.
        let Ok(ended) = pidfd_open(self.pid, PidfdFlags::empty()) else {
            return Ok(());
        };
        drop(self.link);
        let limit = Timespec::try_from(END_LIMIT)?;
        poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit))?;
        Ok(())
    }
}
