//! A command that ignores SIGTERM, and an API server that does not answer: the command is dead before
//! the deadline of its lease.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;

use crate::harness::{
    Cluster, Exec, PATIENCE, Sidecar, TakeOver, eventually, now, own_file, until_dead,
};
use crate::support::{BINARY, BUSY, sidecar, tell};

const ROUNDS: usize = 4;
const SIDECARS: usize = 5;
/// The commands of each sidecar, in each round.
const COMMANDS: usize = 10;
const TTL_SECONDS: u64 = 10;
/// The exit code for a lost lease.
const LOST: i32 = 201;

/// Writes its process id, its child's and its lease. Both ignore SIGTERM.
const DEAF: &str = r#"
trap "" TERM
(trap "" TERM; while :; do sleep 1; done) &
echo "$$ $! $LEASEHOLD_LEASE_ID" > FILE.new; mv FILE.new FILE
while :; do sleep 1; done"#;

/// A command under a lock of its own.
struct Deaf<'a> {
    exec: Exec,
    sidecar: &'a Sidecar,
    file: PathBuf,
}

/// What a command wrote about itself.
struct Facts {
    pids: [i32; 2],
    lease: String,
}

impl<'a> Deaf<'a> {
    fn start(sidecar: &'a Sidecar, lock: &str) -> Result<Self> {
        let file = own_file("deaf")?;
        let script = DEAF.replace("FILE", &file.display().to_string());
        Ok(Self {
            exec: Exec::start(BINARY, sidecar, &["--lock", lock], &script)?,
            sidecar,
            file,
        })
    }

    async fn facts(&self) -> Result<Facts> {
        let written = eventually("a command to run", PATIENCE, async || {
            std::fs::read_to_string(&self.file).ok()
        });
        let text = written.await.with_context(|| self.exec.log())?;
        let mut fields = text.split_whitespace();
        let mut field = || fields.next().context("three fields");
        Ok(Facts {
            pids: [field()?.parse()?, field()?.parse()?],
            lease: field()?.to_owned(),
        })
    }

    /// Returns until when the lease is valid, once renewals have stopped: two answers agree. A pause
    /// lies between them, in which the sidecar processes what it received before.
    async fn last_deadline(&self, lease: &str) -> Result<Moment> {
        const PAUSE: Duration = Duration::from_millis(200);
        const AGREE: Duration = Duration::from_millis(20);

        let mut before = self.sidecar.deadline(lease).await?;
        loop {
            tokio::time::sleep(PAUSE).await;
            let after = self.sidecar.deadline(lease).await?;
            if after.since(before).max(before.since(after)) <= AGREE {
                return Ok(before.max(after));
            }
            before = after;
        }
    }

    /// Waits for the end, and returns how long before the deadline the command and its child were
    /// observed dead.
    async fn margins(&self, facts: &Facts) -> Result<Vec<Duration>> {
        let deadline = self.last_deadline(&facts.lease).await?;
        let died = until_dead(&facts.pids, PATIENCE).await?;
        self.exec.ends_with(LOST).await?;
        let late = died.iter().map(|died| died.since(deadline)).max();
        let late = late.unwrap_or_default();
        ensure!(
            late.is_zero(),
            "dead {late:?} after the deadline: {}",
            self.exec.log()
        );
        Ok(died.iter().map(|died| deadline.since(*died)).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deaf_command_is_dead_before_the_deadline() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("exec-deaf").await?;
    let mut sidecars = vec![];
    for number in 0..SIDECARS {
        let pod = namespace.pod(&format!("pod-{number}")).await?;
        sidecars.push(sidecar(&pod, TTL_SECONDS).await?);
    }
    let _machine = BUSY.lock().await;
    let mut margins = vec![];
    for round in 0..ROUNDS {
        until_all_work(&sidecars).await?;
        let started = now();
        let mut all = vec![];
        for command in 0..COMMANDS {
            for (number, sidecar) in sidecars.iter().enumerate() {
                let lock = format!("{round}-{number}-{command}");
                all.push(Deaf::start(sidecar, &lock)?);
            }
        }
        let facts = futures::future::try_join_all(all.iter().map(Deaf::facts)).await?;
        let run = now();
        cluster.control_plane().freeze().await?;
        let ends = all
            .iter()
            .zip(&facts)
            .map(|(deaf, facts)| deaf.margins(facts));
        let found = futures::future::try_join_all(ends).await?;
        let ended = now();
        cluster.control_plane().thaw().await?;
        margins.extend(found.into_iter().flatten());
        println!(
            "{:?} to start, {:?} to end",
            run.since(started),
            ended.since(run)
        );
    }
    margins.sort_unstable();
    let (least, most) = (margins[0], margins[margins.len() - 1]);
    let median = margins[margins.len() / 2];
    tell(&format!(
        "measured: {} processes dead before the deadline, by {least:?} at least, median {median:?}, \
         at most {most:?}",
        margins.len()
    ))
}

/// Waits until each sidecar grants locks.
async fn until_all_work(sidecars: &[Sidecar]) -> Result<()> {
    for (number, sidecar) in sidecars.iter().enumerate() {
        let what = format!("sidecar {number} to grant a lock");
        let lease = eventually(&what, PATIENCE, async || {
            let answer = sidecar.acquire(&format!("probe-{number}")).await.ok()?;
            answer.granted().ok()
        });
        sidecar.release_for_good(&lease.await?.id).await?;
    }
    Ok(())
}
