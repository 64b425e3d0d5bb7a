//! The second process of `leasehold exec`: it holds the lock, runs the command and ends it in time.
//!
//! It is in a process group of its own, so that neither Ctrl-Z nor a signal to the first process
//! stops renewals. Invariant: the lock is released only when no process of the command runs.
//!
//! An error after the start of the command ends this process, and the first one then kills the command.

use std::io;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_child_subreaper};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior};

use super::acquire::{Holding, LockServer, acquire};
use super::alarm::{Alarm, wait_until};
use super::ending::{Action, Ending, Reason, Rules};
use super::exit_code;
use super::held::HeldLease;
use super::hold::{Event, Hold};
use super::link::{Link, Message, receive, registered, tell};
use super::lost_file::LostFile;
use super::start::Start;
use super::status_line::StatusLine;
use super::{Args, Failure, children, command, ends_a_process, is_in_terminal, tree};
use crate::cli::client::retry_pause;
use crate::cli::serve::block_on;
use crate::clock::{Clock as _, SystemClock};
use crate::protocol::completed::CompletionKey;
use crate::protocol::time::Moment;

/// The pause between two rounds of SIGKILL.
const KILL_AGAIN: Duration = Duration::from_millis(10);
/// How many processes are reaped before anything else is done.
const REAPED_AT_ONCE: usize = 100;
/// The longest default of `--grace`.
const GRACE_MAX: Duration = Duration::from_secs(5);

/// Runs as the keeper, and returns the exit code for the user.
pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    block_signals().context("signals cannot be handled")?;
    let link = Link::inherited().context("no link to the first process")?;
    let front = link
        .creator()
        .context("this role is for `leasehold exec` itself")?;
    let lost_file = LostFile::of_first_process()?;
    let done = run_for(args, link, &lost_file);
    if getppid() != Some(front) {
        lost_file.remove_directory();
    }
    done
}

fn run_for(args: &Args, link: Link, lost_file: &LostFile) -> Result<u8, Failure> {
    let start = Start::receive(link)?;
    set_child_subreaper(Some(getpid())).context("cannot become the parent of orphans")?;
    let mut log = args.log.start_in_background(args.quiet)?;
    let status = log.terminal.take().map(StatusLine::new);
    let done = block_on(async { Ok(keep(args, start, lost_file, status).await) });
    // What is left to log is written, for a moment at most.
    drop(log);
    done?
}

/// The first process forwards signals, and the terminal's are not for this one. The mask is inherited
/// from the first process, and replaced as a whole.
fn block_signals() -> nix::Result<()> {
    let mut set = SigSet::all();
    for signal in [NixSignal::SIGCHLD, NixSignal::SIGSEGV, NixSignal::SIGBUS] {
        set.remove(signal);
    }
    set.thread_set_mask()
}

async fn keep(
    args: &Args,
    start: Start,
    lost_file: &LostFile,
    status: Option<StatusLine>,
) -> Result<u8, Failure> {
    let Start {
        stdin, backstop, ..
    } = start;
    let link = registered(start.link).context("no link to the first process")?;
    let agent = start.agent.map(registered).transpose();
    // The agent continues for as long as this process has its link, or its share.
    let agent = agent.context("no link to the agent")?;
    let _users = start.users;
    let children = signal(SignalKind::child()).context("signals cannot be handled")?;
    let alarm = registered(Alarm::new().context("no timer")?).context("no timer")?;
    let url = args.url.as_ref().context("no URL of a sidecar")?;
    let server = LockServer {
        url,
        agent,
        directory: args.data_dir(),
    };
    server.log(&args.lock);
    let Holding { hold, lease, slot } = match acquire(args, &server, &link, status).await? {
        Ok(holding) => holding,
        Err(code) => return Ok(code),
    };
    if let Some(key) = &args.once
        && lease.has_completed(key)?
    {
        tracing::info!(resource = %slot.resource, %key, "already completed; command skipped");
        HeldLease { server: url, lease }.release().await;
        return Ok(0);
    }
    tracing::info!(
        resource = %slot.resource, leaseId = lease.id, fencingToken = lease.token, "lock acquired"
    );
    let started = SystemClock.now();
    let rules = Rules {
        on_lost: args.on_lost,
        grace: grace(args.grace, lease.deadline.since(started)),
        max_run_ends: args.max_run.map(|limit| started.after(limit)),
    };
    let ending = Ending::new(rules, lease.deadline);
    // All this before the command runs: this process may be stopped or killed at any time.
    backstop.set(ending.backstop()).context("no timer")?;
    let connection = hold.connection.descriptor.try_clone();
    let connection = connection.context("the connection cannot be shared")?;
    tell(&link, &Message::Connection(connection));
    tell(&link, &Message::Started);
    let command = command::start(args, url, (&lease, &slot), stdin).inspect_err(|_not_started| {
        tell(&link, &Message::Done(exit_code::UNAVAILABLE));
    });
    let command = command.context("cannot start a process")?;
    let mut keeper = Keeper {
        link,
        backstop,
        children,
        alarm,
        command,
        group: (!is_in_terminal()).then_some(command),
        ending,
        hold: Some(hold),
        held: HeldLease { server: url, lease },
        lost_file,
        has_front: true,
        is_asked_to_end: false,
        kill_rounds: None,
        ended: None,
        is_done: false,
    };
    let code = keeper.until_ended().await?;
    keeper.finish(args, code, started).await?;
    Ok(code)
}

/// Returns whether an exit code says that exec ended the command.
fn is_own(code: u8) -> bool {
    matches!(code, exit_code::LOST | exit_code::TIMED_OUT)
}

/// Returns how long before the deadline SIGTERM is sent. With more than half of the validity, the
/// command would be ended between two renewals.
fn grace(asked: Option<Duration>, validity: Duration) -> Duration {
    let Some(asked) = asked else {
        return (validity / 4).min(GRACE_MAX);
    };
    let most = validity / 2;
    if asked > most {
        tracing::warn!(
            graceMs = most.as_millis(),
            "grace shortened to half of the validity"
        );
    }
    asked.min(most)
}

/// The children of this process, after some were reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Children {
    None,
    Running,
    MoreToReap,
}

struct Keeper<'a> {
    link: AsyncFd<Link>,
    /// The first process kills the command if this timer fires.
    backstop: Alarm,
    children: SignalStream,
    alarm: AsyncFd<Alarm>,
    command: Pid,
    /// The command's process group, if it has one of its own.
    group: Option<Pid>,
    ending: Ending,
    /// The stream of the lease, until the lease is lost or the stream ends.
    hold: Option<Hold>,
    held: HeldLease<'a>,
    lost_file: &'a LostFile,
    has_front: bool,
    /// Whether a signal asked the command to end.
    is_asked_to_end: bool,
    /// The rounds of SIGKILL for all that is left, once they have begun.
    kill_rounds: Option<Interval>,
    ended: Option<ExitStatus>,
    /// Whether nothing of the command is left.
    is_done: bool,
}

impl Keeper<'_> {
    /// Runs until the command and everything that it started have ended. Returns the exit code.
    async fn until_ended(&mut self) -> anyhow::Result<u8> {
        loop {
            let children = self.reap()?;
            if let Some(status) = self.ended.filter(|_| children == Children::None) {
                self.kill_rounds = None;
                return Ok(self.exit_code(status));
            }
            while let Some(action) = self.ending.due(SystemClock.now()) {
                self.act(action)?;
            }
            let until = match children {
                Children::MoreToReap => Some(SystemClock.now()),
                Children::None | Children::Running => self.ending.next(),
            };
            self.wait(until).await?;
        }
    }

    /// Tells the first process how the command ended, records that, waits for `--at-least-for`, and releases.
    async fn finish(&mut self, args: &Args, code: u8, started: Moment) -> anyhow::Result<()> {
        if let Some(reason) = self.ending.reason().filter(|_| is_own(code)) {
            tracing::error!(%reason, exitCode = code, "command ended by exec");
        }
        // From here on no process is to be killed, and the exit code stays.
        self.is_done = true;
        self.backstop.set(None).context("no timer")?;
        tell(&self.link, &Message::Done(code));
        // A command that a signal has ended early may exit with 0, too.
        let has_succeeded = code == 0 && !self.is_asked_to_end;
        if let Some(key) = args.once.as_ref().filter(|_| has_succeeded) {
            self.record(key).await?;
        }
        let until = args.at_least_for.map(|time| started.after(time));
        self.hold_until(until).await?;
        self.release().await;
        Ok(())
    }

    /// Keeps the lock until a moment, or until the lease or this process is to end.
    async fn hold_until(&mut self, until: Option<Moment>) -> anyhow::Result<()> {
        let Some(until) = until else { return Ok(()) };
        loop {
            let now = SystemClock.now();
            if now >= until {
                return Ok(());
            }
            let is_held = self.hold.is_some() && now < self.ending.deadline();
            if self.is_asked_to_end || !self.has_front || !is_held {
                tracing::warn!("lock released before --at-least-for");
                return Ok(());
            }
            self.wait(Some(until.min(self.ending.deadline()))).await?;
        }
    }

    /// Waits until something happens or a moment has come, and takes it.
    async fn wait(&mut self, until: Option<Moment>) -> anyhow::Result<()> {
        tokio::select! {
            biased;
            done = wait_until(&self.alarm, until) => done?,
            () = next_round(&mut self.kill_rounds), if self.kill_rounds.is_some() => {
                tree::kill(&[])?;
            }
            event = next_event(&mut self.hold), if self.hold.is_some() => self.take(event)?,
            message = receive(&self.link), if self.has_front => match message? {
                Some(Message::Signal(signal)) => self.forward(signal),
                Some(Message::TerminalSignal(signal)) => {
                    self.is_asked_to_end |= ends_a_process(signal);
                }
                Some(_) => {}
                None => {
                    self.has_front = false;
                    self.ending.orphan(SystemClock.now());
                }
            },
            // Last, because these may be without end.
            _ = self.children.recv() => {}
        }
        Ok(())
    }

    /// Reaps children.
    fn reap(&mut self) -> anyhow::Result<Children> {
        // Bounded: a program can create processes faster than they are reaped.
        for _ in 0..REAPED_AT_ONCE {
            match children::next_ended()? {
                Some((pid, status)) if pid == self.command => {
                    self.ended = Some(status);
                }
                Some(_) => {}
                None if !children::has_any() => return Ok(Children::None),
                None => {
                    if self.ended.is_some() {
                        self.ending.leave_behind(SystemClock.now());
                    }
                    return Ok(Children::Running);
                }
            }
        }
        Ok(Children::MoreToReap)
    }

    fn forward(&mut self, signal: i32) {
        self.is_asked_to_end |= ends_a_process(signal);
        if self.ended.is_none()
            && let Some(signal) = Signal::from_named_raw(signal)
        {
            // It is not reaped, so its id is its own.
            let _ended = kill_process(self.command, signal);
        }
    }

    fn act(&mut self, action: Action) -> anyhow::Result<()> {
        match action {
            Action::Terminate(reason) => {
                // Before SIGTERM, whose handler may look for it.
                self.report_deadline(reason);
                tree::terminate()?;
                tracing::warn!(%reason, signal = "SIGTERM", "ending the command");
            }
            Action::Kill(reason) => {
                let group = self.group.filter(|_| self.ended.is_none());
                let mut rounds = tokio::time::interval(KILL_AGAIN);
                rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
                if let Some(group) = group {
                    // Nearly always this is all, and it takes no time. Finding the rest in /proc is slow:
                    // many execs on one machine would do that at once, when they must be fast.
                    tree::kill_group(group);
                    rounds.reset();
                }
                self.kill_rounds = Some(rounds);
                self.report_deadline(reason);
                tracing::warn!(%reason, signal = "SIGKILL", "ending the command");
            }
            Action::Report => {
                tracing::error!("lease lost; command continues");
                self.lost_file.create(&Reason::Deadline.to_string());
            }
        }
        Ok(())
    }

    /// Reports that the deadline is near. A loss was reported when the sidecar said so.
    fn report_deadline(&self, reason: Reason) {
        if reason == Reason::Deadline {
            self.lost_file.create(&reason.to_string());
        }
    }

    fn take(&mut self, event: anyhow::Result<Option<Event>>) -> io::Result<()> {
        match event {
            Ok(Some(Event::Valid(deadline))) => {
                self.ending.extend(deadline);
                if !self.is_done {
                    self.backstop.set(self.ending.backstop())?;
                }
            }
            Ok(Some(Event::AtRisk)) => {
                tracing::warn!("session not renewed; lease at risk");
            }
            Ok(Some(Event::ReleaseRequested(why))) => {
                tracing::warn!(
                    reason = why.reason,
                    detail = why.detail,
                    "release requested"
                );
            }
            Ok(Some(Event::Lost(why))) => {
                tracing::error!(reason = why.reason, detail = why.detail, "lease lost");
                self.lost_file.create(&why.reason);
                self.ending.lose(SystemClock.now());
                self.hold = None;
            }
            Ok(Some(Event::Waiting { .. } | Event::Acquired(_) | Event::Failed(_))) => {}
            // So a stream ends whose lease was released by a call.
            Ok(None) => {
                tracing::error!(reason = "released", "lease lost");
                self.lost_file.create("released");
                self.ending.lose(SystemClock.now());
                self.hold = None;
            }
            Err(_) => {
                let error = event.err().map(|error| format!("{error:#}"));
                tracing::error!(
                    error,
                    effect = "the lease ends at its deadline",
                    "connection to the agent lost"
                );
                self.hold = None;
            }
        }
        Ok(())
    }

    /// Records that the command has succeeded, for as long as the lock is held.
    async fn record(&mut self, key: &CompletionKey) -> anyhow::Result<()> {
        let held = self.held.clone();
        let lease = &*held.lease.id;
        let mut failures = 0;
        loop {
            let Some(outcome) = self.while_held(held.complete(key)).await? else {
                tracing::error!(leaseId = lease, %key, "completion not confirmed; lease over");
                return Ok(());
            };
            let Err(error) = outcome else {
                tracing::info!(leaseId = lease, %key, "completion recorded");
                return Ok(());
            };
            let detail = &*error.detail;
            if !error.is_transient() {
                tracing::error!(leaseId = lease, %key, detail, "completion not recorded");
                return Ok(());
            }
            if self.is_asked_to_end || !self.has_front {
                tracing::error!(leaseId = lease, %key, detail, "completion not confirmed; asked to end");
                return Ok(());
            }
            if failures == 0 {
                tracing::warn!(leaseId = lease, %key, detail, "completion not confirmed; retrying");
            }
            failures += 1;
            let pause = tokio::time::sleep(retry_pause(failures, fastrand::f64()));
            self.while_held(pause).await?;
        }
    }

    /// Waits for something while the lock is held, and takes what happens meanwhile. `None` if the lease
    /// is over first.
    async fn while_held<T>(&mut self, what: impl Future<Output = T>) -> anyhow::Result<Option<T>> {
        let mut what = pin!(what);
        while self.hold.is_some() && SystemClock.now() < self.ending.deadline() {
            let deadline = self.ending.deadline();
            tokio::select! {
                biased;
                done = &mut what => return Ok(Some(done)),
                waited = self.wait(Some(deadline)) => waited?,
            }
        }
        Ok(None)
    }

    /// Releases the lock, if it is still held.
    async fn release(&mut self) {
        if self.hold.is_some() && SystemClock.now() < self.ending.deadline() {
            self.held.release().await;
        }
        self.hold = None;
    }

    /// Returns the exit code for the user.
    fn exit_code(&self, status: ExitStatus) -> u8 {
        match self.ending.reason() {
            Some(Reason::Lost | Reason::Deadline | Reason::Orphaned) => exit_code::LOST,
            Some(Reason::MaxRun) => exit_code::TIMED_OUT,
            Some(Reason::LeftBehind) | None => command::exit_code_of(status),
        }
    }
}

async fn next_round(rounds: &mut Option<Interval>) {
    match rounds {
        Some(rounds) => {
            rounds.tick().await;
        }
        None => std::future::pending().await,
    }
}

async fn next_event(hold: &mut Option<Hold>) -> anyhow::Result<Option<Event>> {
    match hold {
        Some(hold) => hold.next().await,
        None => std::future::pending().await,
    }
}
