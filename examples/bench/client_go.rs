//! client-go's leader election (bench/leaderelection). Each candidate is a separate process.

use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};
use leasehold::protocol::time::Moment;
use rustix::process::Signal;

use crate::harness::{Kubeconfig, Process, directory, eventually};

/// The limit for each wait for a candidate: longer than any take-over.
const LIMIT: Duration = Duration::from_secs(60);

/// An election whose candidates run this binary.
pub(crate) struct Election<'a> {
    pub(crate) binary: &'a str,
    pub(crate) access: &'a Kubeconfig,
    pub(crate) namespace: &'a str,
    /// The name of the Lease.
    pub(crate) lease: String,
}

/// A candidate that leads or stands by. Dropping it kills the process.
pub(crate) struct Candidate(Process);

impl Election<'_> {
    /// Starts a candidate.
    pub(crate) fn join(&self) -> Result<Candidate> {
        static STARTED: AtomicU32 = AtomicU32::new(0);

        let identity = format!("candidate-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let mut command = Command::new(self.binary);
        command
            .arg("--kubeconfig")
            .arg(&self.access.path)
            .args(["--namespace", self.namespace])
            .args(["--lease", &self.lease, "--identity", &identity]);
        let log = directory()?.join(format!("{identity}.log"));
        Ok(Candidate(Process::spawn(&identity, &mut command, &log)?))
    }
}

impl Candidate {
    /// Waits until the candidate knows the leader; from then on it stands by.
    pub(crate) async fn knows_the_leader(&self) -> Result<()> {
        self.until_it_says("knows").await.map(drop)
    }

    /// Waits until the candidate leads, and returns when its lead began.
    pub(crate) async fn leads(&self) -> Result<Moment> {
        self.until_it_says("leading").await
    }

    pub(crate) fn sigterm(&self) -> Result<()> {
        self.0.signal(Signal::TERM)
    }

    pub(crate) fn kill9(&self) -> Result<()> {
        self.0.signal(Signal::KILL)
    }

    pub(crate) async fn ended(&self) -> Result<ExitStatus> {
        self.0.wait(LIMIT).await
    }

    async fn until_it_says(&self, what: &str) -> Result<Moment> {
        let looked_for = format!("the candidate to say {what:?}");
        let said = eventually(&looked_for, LIMIT, async || {
            let log = self.0.log();
            let at = log.lines().find_map(|line| said_at(line, what));
            let ended = self.0.exited().ok().flatten().is_some();
            (at.is_some() || ended).then_some(at)
        });
        match said.await? {
            Some(at) => Ok(at),
            None => bail!("a candidate ended:\n{}", self.0.last_words()),
        }
    }
}

/// Returns the time of the log line, if the line reports this event.
fn said_at(line: &str, what: &str) -> Option<Moment> {
    let (at, said) = line.split_once(' ')?;
    let at = at.parse().ok()?;
    said.starts_with(what)
        .then(|| Moment::since_boot(Duration::from_nanos(at)))
}
