//! The process that the user started: it forwards signals to the keeper and watches it.
//!
//! It is small and waits. It acts only if the keeper does not: if the keeper is stopped (SIGSTOP), it
//! kills the command before the deadline; if the keeper ends before the command, it kills what the
//! command started. It has the connection that holds the lock, too. So if the keeper is killed, the
//! sidecar releases the lock only after the front has ended.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::unistd::getsid;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_current_process_group, set_child_subreaper};

use super::agent_process::AgentProcess;
use super::alarm::Alarm;
use super::link::{Link, Message};
use super::local::ServerInUse;
use super::lost_file::Directory;
use super::{Args, KEEPER, OWN_BINARY, URL_VARIABLE, children, exit_code, is_in_terminal, tree};
use crate::cli::client::Server;
use crate::cli::output;

/// The pause between two rounds of SIGKILL.
const PAUSE: Duration = Duration::from_millis(5);

/// The exit code of a Rust program that panicked.
const PANICKED: i32 = 101;

/// The signals for the command.
const FORWARDED: [NixSignal; 7] = [
    NixSignal::SIGTERM,
    NixSignal::SIGINT,
    NixSignal::SIGHUP,
    NixSignal::SIGQUIT,
    NixSignal::SIGUSR1,
    NixSignal::SIGUSR2,
    NixSignal::SIGWINCH,
];

/// Runs the keeper, and returns its exit code.
pub(super) fn run(args: &Args) -> anyhow::Result<u8> {
    check_system()?;
    // Before this process becomes the parent of orphans, and before it blocks signals.
    let local = args.local_server()?;
    let is_leader = getsid(None)? == nix::unistd::getpid();
    let signals = block_signals(is_leader).context("signals cannot be handled")?;
    // A shell that executes this program leaves its children to it.
    let mut others = tree::children().context("/proc cannot be read")?;
    set_child_subreaper(Some(getpid())).context("cannot become the parent of orphans")?;
    let has_agent = args.url.is_none() && local.is_none();
    let directory = Directory::create(has_agent)?;
    let backstop = Alarm::new().context("no timer")?;
    let agent = has_agent.then(|| AgentProcess::start(&directory.socket()));
    let agent = agent.transpose().context("cannot start the agent")?;
    others.extend(agent.as_ref().map(|agent| agent.pid));
    let (link, keeper) = start_keeper(&directory, &backstop, agent.as_ref(), local.as_ref())
        .context("cannot start the second process")?;
    let mut front = Front {
        link,
        keeper,
        agent: agent.as_ref().map(|agent| agent.pid),
        others,
        signals,
        backstop,
        in_terminal: is_in_terminal(),
        has_started: false,
        done: None,
        connection: None,
        local,
    };
    let code = front.watch();
    drop(front);
    // After an error, the keeper may still need the agent.
    if let (Ok(code), Some(agent)) = (&code, agent)
        && let Err(error) = agent.end(*code == exit_code::LOST)
    {
        output::error(&anyhow::Error::new(error).context("the agent's end was not awaited"));
    }
    code
}

/// Checks what exec needs of the system to find its processes and to notice their ends.
fn check_system() -> anyhow::Result<()> {
    let own = fs::read_link("/proc/self").unwrap_or_default();
    anyhow::ensure!(
        own.to_str() == Some(&*getpid().to_string()),
        "/proc is missing, or shows another PID namespace; mount it (`unshare --mount-proc`)"
    );
    anyhow::ensure!(
        !is_ignored(ignored_signals()?, NixSignal::SIGCHLD),
        "SIGCHLD is ignored, so the end of the command would not be noticed; start exec with the \
         default action"
    );
    Ok(())
}

/// Blocks the signals that are read instead. So they also reach a first process of a container, for
/// which the kernel drops signals without a handler. A signal that was ignored before stays so
/// (`nohup`): the kernel would report it nevertheless.
fn block_signals(is_leader: bool) -> anyhow::Result<SignalFd> {
    let ignored = ignored_signals()?;
    let mut set = SigSet::empty();
    for signal in FORWARDED {
        if !is_ignored(ignored, signal) {
            set.add(signal);
        }
    }
    if is_leader {
        set.add(NixSignal::SIGTSTP);
    }
    set.add(NixSignal::SIGCHLD);
    set.thread_block()?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok(SignalFd::with_flags(&set, flags)?)
}

/// Returns a bit for each ignored signal (proc(5)).
fn ignored_signals() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("/proc cannot be read")?;
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    Ok(u64::from_str_radix(mask.unwrap_or_default().trim(), 16)?)
}

fn is_ignored(mask: u64, signal: NixSignal) -> bool {
    mask & (1 << (signal as u32 - 1)) != 0
}

/// Starts the keeper with the same command line, in a process group of its own: the terminal's
/// signals do not reach it.
fn start_keeper(
    directory: &Directory,
    backstop: &Alarm,
    agent: Option<&AgentProcess>,
    local: Option<&ServerInUse>,
) -> anyhow::Result<(Link, Pid)> {
    let (link, other) = Link::pair()?;
    let url = match local {
        Some(local) => Some(local.server.clone()),
        None => agent.map(|_| Server::Unix(directory.socket())),
    };
    let keeper = Command::new(OWN_BINARY)
        .arg0("leasehold")
        .arg(KEEPER)
        .args(std::env::args_os().skip(2))
        .envs([directory.variable()])
        .envs(url.map(|url| (URL_VARIABLE, url.to_string())))
        .stdin(Stdio::from(other.into_fd()))
        .process_group(0)
        .spawn()?;
    let stdin = rustix::stdio::stdin().try_clone_to_owned()?;
    link.send(&Message::Stdin(stdin))?;
    if let Some(agent) = agent {
        link.send(&Message::Agent(agent.share()?))?;
    }
    if let Some(local) = local {
        link.send(&Message::Users(local.share()?))?;
    }
    link.send(&Message::Backstop(backstop.share()?))?;
    Ok((link, Pid::from_child(&keeper)))
}

struct Front {
    link: Link,
    keeper: Pid,
    /// The agent, if exec has one of its own.
    agent: Option<Pid>,
    /// Children that are not of the command: those that this process had before, and the agent.
    others: Vec<Pid>,
    signals: SignalFd,
    /// Fires if the keeper is stopped until the deadline is near.
    backstop: Alarm,
    in_terminal: bool,
    /// Whether the command was started.
    has_started: bool,
    /// The command's exit code, once nothing of it is left.
    done: Option<u8>,
    connection: Option<OwnedFd>,
    /// The server of the data directory, if it has one.
    local: Option<ServerInUse>,
}

impl Front {
    fn watch(&mut self) -> anyhow::Result<u8> {
        let mut linked = true;
        loop {
            while let Ok(Some(info)) = self.signals.read_signal() {
                self.take_signal(&info);
            }
            while linked {
                match self.link.receive() {
                    Ok(Some(message)) => self.take(message),
                    // Its end is reported by SIGCHLD.
                    Ok(None) => linked = false,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                }
            }
            // After SIGCHLD was read, so that each end is followed by this.
            if let Some(status) = self.reap()? {
                return self.without_keeper(status);
            }
            if self.backstop.has_fired()? {
                return self.kill("its second process was stopped until the lease was nearly over");
            }
            let mut sources = vec![
                PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.backstop.as_fd(), PollFlags::IN),
            ];
            if linked {
                sources.push(PollFd::new(&self.link, PollFlags::IN));
            }
            match poll(&mut sources, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Started => self.has_started = true,
            Message::Done(code) => self.done = Some(code),
            Message::Connection(descriptor) => self.connection = Some(descriptor),
            Message::ServeAgain => {
                let server = self.local.as_ref().map(ServerInUse::start_again);
                // If it cannot be started, the keeper gets no answer, and reports that.
                self.others.extend(server.and_then(Result::ok));
            }
            // These are for the other processes.
            Message::Listener(_)
            | Message::Ready
            | Message::Failed(_)
            | Message::Agent(_)
            | Message::Users(_)
            | Message::Stdin(_)
            | Message::Backstop(_)
            | Message::Signal(_)
            | Message::TerminalSignal(_) => {}
        }
    }

    /// Forwards a signal.
    fn take_signal(&self, info: &siginfo) {
        /// `SI_KERNEL` of sigaction(2).
        const BY_KERNEL: i32 = 0x80;

        let Ok(signal) = i32::try_from(info.ssi_signo) else {
            return;
        };
        if signal == NixSignal::SIGCHLD as i32 {
            return;
        }
        if signal == NixSignal::SIGTSTP as i32 {
            // Without a shell, nothing would continue the command: without exec, Ctrl-Z has no effect on
            // a session leader and its group either.
            let _alone = kill_current_process_group(Signal::CONT);
            return;
        }
        // In a terminal the command is in this process's group and has received the signal, but for the
        // end of the terminal, which the kernel sends to the session leader.
        let is_received =
            self.in_terminal && info.ssi_code == BY_KERNEL && signal != NixSignal::SIGHUP as i32;
        let message = if is_received {
            Message::TerminalSignal(signal)
        } else {
            Message::Signal(signal)
        };
        // A keeper that has ended is reported by SIGCHLD.
        let _ended = self.link.send(&message);
    }

    /// Reaps children that ended. Returns the status of the keeper if it is one of them.
    fn reap(&mut self) -> io::Result<Option<ExitStatus>> {
        let mut keeper = None;
        while let Some((pid, status)) = children::next_ended()? {
            if pid == self.keeper {
                keeper = Some(status);
            }
            if Some(pid) == self.agent {
                // What is left of it, such as a credential plugin that hangs.
                tree::kill_group(pid);
            }
            // Its id may soon be another process's.
            self.others.retain(|other| *other != pid);
        }
        Ok(keeper)
    }

    /// The keeper has ended. If it has not reported the end of the command, it was killed or has failed,
    /// and no process reads the renewals of the lease.
    fn without_keeper(&mut self, status: ExitStatus) -> anyhow::Result<u8> {
        match (self.done, status.code()) {
            (Some(code), _) => Ok(code),
            (None, Some(PANICKED)) if !self.has_started => Ok(exit_code::UNAVAILABLE),
            (None, Some(code)) if !self.has_started => Ok(u8::try_from(code)?),
            _ => self.kill(&format!("its second process ended ({status})")),
        }
    }

    /// Kills all that the command started, and the keeper, and waits for their end.
    fn kill(&mut self, reason: &str) -> anyhow::Result<u8> {
        let mut rounds_without = 0;
        while rounds_without < 2 {
            let running = tree::kill(&self.others)?;
            self.reap()?;
            rounds_without = if running == 0 { rounds_without + 1 } else { 0 };
            std::thread::sleep(PAUSE);
        }
        // Last, because nothing may read standard error.
        if !self.has_started {
            output::error(&anyhow::anyhow!("exec did not run the command: {reason}"));
            return Ok(exit_code::UNAVAILABLE);
        }
        output::error(&anyhow::anyhow!("exec killed the command: {reason}"));
        Ok(exit_code::LOST)
    }
}
