//! The process that the user started: it forwards signals to the keeper and watches it.
//!
//! It is small and waits. It acts only if the keeper does not: if the keeper stands still (SIGSTOP),
//! it kills the command before the deadline; if the keeper ends without the command, it kills what
//! the command started. It has the connection that holds the lock, too. So the sidecar releases the
//! lock only after both processes have ended.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{SigSet, Signal as NixSignal};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, WaitId, WaitIdOptions, WaitOptions, getpid, set_child_subreaper, wait, waitid,
};

use super::alarm::Alarm;
use super::ending::OnLost;
use super::link::{Link, Message};
use super::{KEEPER, LOST_FILE, OWN_BINARY, exit_code, is_in_terminal, tree};
use crate::cli::output;
use crate::clock::{Clock as _, SystemClock};

/// The pause between two looks at processes that were killed.
const PAUSE: Duration = Duration::from_millis(5);
/// How long to wait for killed processes: one in the kernel may take long.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

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
pub(super) fn run(on_lost: OnLost) -> anyhow::Result<u8> {
    let signals = block_signals().context("signals cannot be handled")?;
    set_child_subreaper(Some(getpid())).context("cannot become the parent of orphans")?;
    let directory = Directory::create()?;
    let backstop = Alarm::new().context("no timer")?;
    let (link, keeper) =
        start_keeper(&directory, &backstop).context("cannot start the second process")?;
    let mut front = Front {
        link,
        keeper,
        signals,
        backstop,
        in_terminal: is_in_terminal(),
        command: None,
        ignores_loss: on_lost == OnLost::Ignore,
        connection: None,
    };
    front.watch()
}

/// Blocks the signals that are read instead: also those of init's, which has no default handlers.
fn block_signals() -> nix::Result<SignalFd> {
    let mut set = SigSet::empty();
    for signal in FORWARDED {
        set.add(signal);
    }
    set.add(NixSignal::SIGCHLD);
    set.thread_block()?;
    SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Starts the keeper with the same command line, in a process group of its own: the terminal's
/// signals do not reach it.
fn start_keeper(directory: &Directory, backstop: &Alarm) -> anyhow::Result<(Link, Pid)> {
    let (link, other) = Link::pair()?;
    let keeper = Command::new(OWN_BINARY)
        .arg0("leasehold")
        .arg(KEEPER)
        .args(std::env::args_os().skip(2))
        .env(LOST_FILE, directory.0.join("lost"))
        .stdin(Stdio::from(other.into_fd()))
        .process_group(0)
        .spawn()?;
    let stdin = rustix::stdio::stdin().try_clone_to_owned()?;
    link.send(&Message::Stdin(stdin))?;
    link.send(&Message::Backstop(backstop.share()?))?;
    Ok((link, Pid::from_child(&keeper)))
}

struct Front {
    link: Link,
    keeper: Pid,
    signals: SignalFd,
    /// Fires if the keeper stands still until the deadline is near.
    backstop: Alarm,
    in_terminal: bool,
    command: Option<Pid>,
    ignores_loss: bool,
    connection: Option<OwnedFd>,
}

impl Front {
    fn watch(&mut self) -> anyhow::Result<u8> {
        let mut linked = true;
        loop {
            if let Some(code) = self.reap()? {
                return Ok(code);
            }
            while let Ok(Some(info)) = self.signals.read_signal() {
                self.forward(&info);
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
            if self.backstop.has_fired()? {
                return self.end_keeper();
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
            Message::Started(pid) => self.command = Some(pid),
            Message::Connection(descriptor) => self.connection = Some(descriptor),
            Message::Stdin(_) | Message::Backstop(_) | Message::Signal(_) => {}
        }
    }

    /// Forwards a signal. In a terminal the command is in this process's group, and has received what
    /// the terminal sent.
    fn forward(&self, info: &siginfo) {
        /// `SI_KERNEL` of sigaction(2).
        const BY_KERNEL: i32 = 0x80;
        if self.in_terminal && info.ssi_code == BY_KERNEL {
            return;
        }
        if let Ok(signal) = i32::try_from(info.ssi_signo) {
            // A keeper that has ended is reported by SIGCHLD.
            let _ended = self.link.send(&Message::Signal(signal));
        }
    }

    /// Reaps children that ended. Returns the exit code if the keeper is one of them.
    fn reap(&mut self) -> anyhow::Result<Option<u8>> {
        let mut keeper = None;
        while let Some((pid, status)) = next_ended()? {
            if pid == self.keeper {
                keeper = Some(ExitStatus::from_raw(status));
            }
        }
        keeper.map(|status| self.without_keeper(status)).transpose()
    }

    /// The keeper has ended. It is to end after everything that the command started; otherwise it was
    /// killed or has failed, and nothing extends the lease.
    fn without_keeper(&self, status: ExitStatus) -> anyhow::Result<u8> {
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        if !has_children() {
            return Ok(code.unwrap_or(exit_code::UNAVAILABLE));
        }
        if let Some(command) = self.command.filter(|_| self.ignores_loss) {
            // The command continues, as a child of this process.
            return until_ended(command);
        }
        // Before the message: a full pipe at the standard error blocks this process.
        kill_all()?;
        output::error(&anyhow::anyhow!(
            "the second process of exec ended ({status}); the command was killed, because nothing \
             extended its lease"
        ));
        Ok(exit_code::LOST)
    }

    /// The keeper stands still, and the lease is about to end.
    fn end_keeper(&self) -> anyhow::Result<u8> {
        // The keeper has not reaped the command, so the group is the command's.
        if let Some(group) = self.command.filter(|_| !self.in_terminal) {
            tree::kill_group(group);
        }
        tree::kill(getpid(), Some(self.keeper))?;
        // Before the message: a full pipe at the standard error blocks this process.
        kill_all()?;
        output::error(&anyhow::anyhow!(
            "the second process of exec did not answer until the lease was nearly over; the \
             command was killed"
        ));
        Ok(exit_code::LOST)
    }
}

/// Kills all descendants, and waits for their end.
fn kill_all() -> anyhow::Result<()> {
    let limit = SystemClock.now().after(KILLED_WITHIN);
    loop {
        let killed = tree::kill(getpid(), None)?;
        while next_ended()?.is_some() {}
        if killed == 0 {
            return Ok(());
        }
        if SystemClock.now() > limit {
            output::error(&anyhow::anyhow!(
                "{killed} processes of the command do not end"
            ));
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}

fn until_ended(command: Pid) -> anyhow::Result<u8> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == command => {
                return Ok(code_of(ExitStatus::from_raw(status.as_raw())));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns whether this process has a child, running or not. Orphans of the command are its children.
pub(super) fn has_children() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, options).is_ok()
}

/// Returns a child that has ended, with its status; none if there is none.
pub(super) fn next_ended() -> io::Result<Option<(Pid, i32)>> {
    match wait(WaitOptions::NOHANG) {
        Ok(ended) => Ok(ended.map(|(pid, status)| (pid, status.as_raw()))),
        Err(Errno::CHILD | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the exit code for a process, as shells do.
pub(super) fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or_else(|| exit_code::of_signal(status.signal().unwrap_or_default()))
}

/// The directory of the file that reports a loss, for this user alone.
struct Directory(PathBuf);

impl Directory {
    fn create() -> anyhow::Result<Self> {
        let random = fastrand::u64(..);
        let name = format!("leasehold-exec-{}-{random:016x}", std::process::id());
        let mut failed = None;
        // A container without a writable file system has /dev/shm.
        for parent in [std::env::temp_dir(), "/dev/shm".into()] {
            let path = parent.join(&name);
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) => failed = failed.or(Some((parent, error))),
            }
        }
        let Some((parent, error)) = failed else {
            anyhow::bail!("no directory for the file that reports a loss");
        };
        Err(error).with_context(|| {
            format!(
                "cannot create a directory in {} (set TMPDIR to one that can be written)",
                parent.display()
            )
        })
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A directory that a user removed is no error.
        let _removed = fs::remove_dir_all(&self.0);
    }
}
