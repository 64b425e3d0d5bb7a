//! Two pods whose commands write to a register that checks tokens, while the processes of the first
//! exec are killed or stopped.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;
use rustix::process::Signal;

use super::register::Register;
use super::{LOCK, exec};
use crate::harness::{
    Exec, PATIENCE, Pids, Sidecar, TakeOver, deadline, eventually, is_dead, now, signal, stop_tree,
    until_dead,
};
use crate::support::{Pair, tell, until_queued};

const TTL: Duration = Duration::from_secs(5);
/// How long processes are stopped: longer than a session lives unrenewed.
const STOPPED: Duration = Duration::from_secs(7);
/// The exit code for a lost lease.
const LOST: i32 = 201;

/// The first exec, which writes, and the second, which waits for the lock.
pub(super) struct Writers {
    pair: Pair,
    register: Register,
    pub(super) first: Exec,
    second: Exec,
    /// The processes of the first exec.
    pub(super) pids: Pids,
    token: u64,
    lease: String,
}

impl Writers {
    async fn start(about: &str, ttl: Duration) -> Result<Self> {
        Self::start_with(about, ttl, exec, 1).await
    }

    /// Starts a first command with this many processes that write.
    pub(super) async fn start_with(
        about: &str,
        ttl: Duration,
        exec: fn(&Sidecar, &[&str], &str) -> Result<Exec>,
        writers: usize,
    ) -> Result<Self> {
        let pair = Pair::start(about, TakeOver::Peer, ttl.as_secs()).await?;
        let register = Register::start().await?;
        let first = exec(&pair.a, &[], &register.writer(writers))?;
        let lease = first.until_printed("lease").await?;
        let (token, lease) = lease.split_once(' ').context("a token and a lease")?;
        let pids = first.pids().await?;
        register.until_newer(0, 3).await?;
        let second = exec(&pair.b, &[], &register.writer(1))?;
        until_queued(&pair.namespace, LOCK, 1).await?;
        Ok(Self {
            pair,
            register,
            first,
            second,
            pids,
            token: token.parse()?,
            lease: lease.to_owned(),
        })
    }

    /// Waits until the second command writes and the first exec is dead, and returns the number of
    /// writes of the first that arrived after the first write of the second. Each of them must have
    /// been refused.
    async fn finish(&self, what: &str, since: Moment) -> Result<usize> {
        let pids = [self.pids.command, self.pids.keeper, self.pids.front];
        let (taken, died) = tokio::join!(
            self.register.until_newer(self.token, 1),
            until_dead(&pids, PATIENCE)
        );
        let (taken, died) = (taken?, died?);
        let count = self.register.arrivals(taken.token).len();
        // A late write of the first command would arrive before these.
        eventually("more writes, or a lost lease", PATIENCE, async || {
            let written = self.register.arrivals(taken.token).len();
            (written >= count + 5 || self.second.is_over().ok()?).then_some(())
        })
        .await?;
        self.register.check()?;
        let arrivals = self.register.arrivals(self.token);
        let late = arrivals.iter().filter(|at| **at > taken.at).count();
        tell(&format!(
            "measured: {what}: its command was observed dead after {:?}, the next one wrote after \
             {:?}; {} writes of the first, {late} of them after that",
            died[0].since(since),
            taken.at.since(since),
            arrivals.len(),
        ))?;
        Ok(late)
    }

    /// Kills a process of the first exec, whose command must not write once the second does.
    pub(super) async fn kill(&self, process: &str, pid: i32) -> Result<()> {
        let killed = now();
        signal(pid, Signal::KILL)?;
        let late = self.finish(&format!("{process} killed"), killed).await?;
        ensure!(late == 0, "{:?}", self.register.writes());
        Ok(())
    }

    /// Checks that the first command has the lock and writes, and that the second waits.
    async fn unchanged(&self) -> Result<()> {
        self.writes_again().await?;
        ensure!(!is_dead(self.pids.command), "{}", self.first.log());
        self.pair.a.get(&self.lease).await?.expect(200)?;
        until_queued(&self.pair.namespace, LOCK, 1).await?;
        ensure!(
            self.second.printed("lease").is_none(),
            "{}",
            self.second.log()
        );
        Ok(())
    }

    /// Waits until the first command has written again.
    async fn writes_again(&self) -> Result<()> {
        let before = self.register.writes().len();
        self.register.until_newer(0, before + 2).await?;
        Ok(())
    }

    /// Ends the first command by a signal to its exec.
    async fn end_first(&self) -> Result<()> {
        const ENDED_BY_SIGTERM: i32 = 128 + 15;
        signal(self.pids.front, Signal::TERM)?;
        self.first.ends_with(ENDED_BY_SIGTERM).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn command_ends_with_a_killed_front() -> Result<()> {
    let writers = Writers::start("exec-front", TTL).await?;
    writers.kill("front", writers.pids.front).await
}

#[tokio::test(flavor = "multi_thread")]
async fn command_ends_with_a_killed_keeper() -> Result<()> {
    let writers = Writers::start("exec-keeper", TTL).await?;
    writers.kill("keeper", writers.pids.keeper).await?;
    writers.first.ends_with(LOST).await
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_front_changes_nothing() -> Result<()> {
    let writers = Writers::start("exec-front-stop", TTL).await?;
    signal(writers.pids.front, Signal::STOP)?;
    tokio::time::sleep(STOPPED).await;
    writers.unchanged().await?;
    signal(writers.pids.front, Signal::CONT)?;
    writers.unchanged().await?;
    let ended = now();
    writers.end_first().await?;
    let late = writers
        .finish("front stopped, continued, SIGTERM", ended)
        .await?;
    ensure!(late == 0, "{:?}", writers.register.writes());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn command_of_a_stopped_keeper_dies_before_the_deadline() -> Result<()> {
    // The front kills the command a fortieth of the validity before the deadline.
    const LONG_TTL: Duration = Duration::from_secs(30);

    let writers = Writers::start("exec-keeper-stop", LONG_TTL).await?;
    let stopped = now();
    signal(writers.pids.keeper, Signal::STOP)?;
    // The keeper knows of no later one. The sidecar still extends the lease.
    let deadline = deadline(&writers.pair.a.url, &writers.lease).await?;
    let died = until_dead(&[writers.pids.command], PATIENCE).await?[0];
    ensure!(died < deadline, "{:?} late", died.since(deadline));
    tell(&format!(
        "measured: keeper stopped: its command was dead {:?} before the deadline",
        deadline.since(died)
    ))?;
    writers.first.ends_with(LOST).await?;
    let late = writers.finish("keeper stopped", stopped).await?;
    ensure!(late == 0, "{:?}", writers.register.writes());
    Ok(())
}

/// A whole machine that was suspended: the sidecar, the exec and everything that its command started.
struct Suspended {
    writers: Writers,
    /// The processes of the exec, and the command with what it started.
    stopped: [Vec<i32>; 2],
    /// The writes of the first command before.
    written: usize,
}

impl Suspended {
    /// Returns when the second command writes, because the session of the first pod has expired.
    async fn start(about: &str) -> Result<Self> {
        let writers = Writers::start_with(about, TTL, exec, 8).await?;
        let pids = writers.pids;
        writers.pair.a.freeze()?;
        let mut exec = vec![pids.front, pids.keeper];
        for pid in &exec {
            signal(*pid, Signal::STOP)?;
        }
        let command = stop_tree(pids.command)?;
        exec.extend(stop_tree(pids.front)?);
        exec.retain(|pid| !command.contains(pid));
        writers.register.until_newer(writers.token, 5).await?;
        let written = writers.register.arrivals(writers.token).len();
        Ok(Self {
            writers,
            stopped: [exec, command],
            written,
        })
    }

    fn resume_command(&self) -> Result<()> {
        let [_, command] = &self.stopped;
        let mut pids = command.iter();
        pids.try_for_each(|pid| signal(*pid, Signal::CONT))
    }

    fn resume_exec_and_sidecar(&self) -> Result<()> {
        let [exec, _] = &self.stopped;
        for pid in exec {
            signal(*pid, Signal::CONT)?;
        }
        self.writers.pair.a.thaw()
    }

    /// Waits for the end of the first exec, and returns the number of attempts to write after the
    /// suspension, which were all refused.
    async fn finish(&self, what: &str, resumed: Moment) -> Result<usize> {
        let [exec, command] = &self.stopped;
        let (command, exec) =
            tokio::join!(until_dead(command, PATIENCE), until_dead(exec, PATIENCE));
        let last = |died: Vec<Moment>| died.iter().map(|died| died.since(resumed)).max();
        let (command, exec) = (last(command?), last(exec?));
        let writers = &self.writers;
        writers.first.ends_with(LOST).await?;
        let late = writers.finish(what, resumed).await?;
        let attempts = writers
            .register
            .arrivals(writers.token)
            .split_off(self.written);
        ensure!(attempts.len() == late, "{:?}", writers.register.writes());
        tell(&format!(
            "measured: {what}: {late} attempts to write, all refused, the last after {:?}; the \
             command and all that it started were dead after {command:?}, exec after {exec:?}",
            attempts.last().map(|at| at.since(resumed))
        ))?;
        Ok(late)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_after_a_suspension_are_refused() -> Result<()> {
    let suspended = Suspended::start("exec-suspended").await?;
    let resumed = now();
    // The command first: it has the most time to write.
    suspended.resume_command()?;
    suspended.resume_exec_and_sidecar()?;
    suspended.finish("suspended", resumed).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_write_before_exec_resumes_is_refused() -> Result<()> {
    let suspended = Suspended::start("exec-resumed").await?;
    let writers = &suspended.writers;
    let resumed = now();
    suspended.resume_command()?;
    eventually("ten attempts to write", PATIENCE, async || {
        let count = writers.register.arrivals(writers.token).len();
        (count >= suspended.written + 10).then_some(())
    })
    .await?;
    suspended.resume_exec_and_sidecar()?;
    let late = suspended.finish("command resumed first", resumed).await?;
    ensure!(late >= 10, "{:?}", writers.register.writes());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_stays_while_both_processes_are_stopped() -> Result<()> {
    let writers = Writers::start("exec-both-stop", TTL).await?;
    let both = [writers.pids.front, writers.pids.keeper];
    for pid in both {
        signal(pid, Signal::STOP)?;
    }
    tokio::time::sleep(STOPPED).await;
    writers.unchanged().await?;
    let resumed = now();
    for pid in both {
        signal(pid, Signal::CONT)?;
    }
    // They observe a deadline in the past, and kill the command at once.
    writers.first.ends_with(LOST).await?;
    let late = writers.finish("both processes stopped", resumed).await?;
    ensure!(late == 0, "{:?}", writers.register.writes());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_stopped_for_a_moment_continue() -> Result<()> {
    // The next SIGTERM is due two thirds of it after a renewal, without its grace.
    const LONG_TTL: Duration = Duration::from_secs(30);

    let writers = Writers::start("exec-both-short", LONG_TTL).await?;
    let both = [writers.pids.front, writers.pids.keeper];
    for pid in both {
        signal(pid, Signal::STOP)?;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    for pid in both {
        signal(pid, Signal::CONT)?;
    }
    writers.unchanged().await?;
    let ended = now();
    writers.end_first().await?;
    let late = writers
        .finish("both stopped for a moment, SIGTERM", ended)
        .await?;
    ensure!(late == 0, "{:?}", writers.register.writes());
    Ok(())
}
