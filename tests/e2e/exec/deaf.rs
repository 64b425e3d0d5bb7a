//! A command that ignores SIGTERM, and an API server that does not answer: the command is dead before
//! the deadline of its lease.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use leasehold::protocol::time::Moment;

use crate::harness::{
    Cluster, Exec, PATIENCE, Sidecar, TakeOver, deadline, eventually, now, own_file, until_dead,
};
use crate::support::{BINARY, BUSY, sidecar, tell};

const ROUNDS: usize = 4;
const SIDECARS: usize = 5;
/// The commands of each sidecar, in each round.
const COMMANDS: usize = 9;
/// The commands without a sidecar, in each round: each has an agent of its own.
const ALONE: usize = 5;
const TTL_SECONDS: u64 = 20;
/// The exit code for a lost lease.
const LOST: i32 = 201;

/// Writes its process id, its child's, its lease and the URL of its agent. Both ignore SIGTERM.
const DEAF: &str = r#"
trap "" TERM
(trap "" TERM; while :; do sleep 1; done) &
echo "$$ $! $LEASEHOLD_LEASE_ID $LEASEHOLD_URL" > FILE.new; mv FILE.new FILE
while :; do sleep 1; done"#;

/// A command under a lock of its own.
struct Deaf {
    exec: Exec,
    file: PathBuf,
}

/// What a command wrote about itself.
struct Facts {
    pids: [i32; 2],
    lease: String,
    url: String,
}

impl Deaf {
    /// Starts it with the script as its last argument.
    fn start(start: impl FnOnce(&str) -> Result<Exec>) -> Result<Self> {
        let file = own_file("deaf")?;
        let script = DEAF.replace("FILE", &file.display().to_string());
        let exec = start(&script)?;
        Ok(Self { exec, file })
    }

    async fn facts(&self) -> Result<Facts> {
        let written = eventually("a command to run", PATIENCE, async || {
            std::fs::read_to_string(&self.file).ok()
        });
        let text = written.await.with_context(|| self.exec.log())?;
        let mut fields = text.split_whitespace();
        let mut field = || fields.next().context("four fields");
        Ok(Facts {
            pids: [field()?.parse()?, field()?.parse()?],
            lease: field()?.to_owned(),
            url: field()?.to_owned(),
        })
    }

    /// Returns until when the lease is valid, once renewals have stopped: two answers agree. A pause
    /// lies between them, in which the agent processes what it received before. On a busy machine,
    /// the lease may end before two answers agree. Each answer is a lower bound, so the latest counts.
    async fn last_deadline(facts: &Facts) -> Result<Moment> {
        const PAUSE: Duration = Duration::from_millis(200);
        const AGREE: Duration = Duration::from_millis(20);

        let mut latest = deadline(&facts.url, &facts.lease).await?;
        loop {
            tokio::time::sleep(PAUSE).await;
            let Ok(next) = deadline(&facts.url, &facts.lease).await else {
                return Ok(latest);
            };
            if next.since(latest).max(latest.since(next)) <= AGREE {
                return Ok(latest.max(next));
            }
            latest = latest.max(next);
        }
    }

    /// Returns how long before the deadline a process was dead.
    fn margin(&self, deadline: Moment, died: Moment) -> Result<Duration> {
        ensure!(
            died < deadline,
            "dead {:?} after the deadline: {}",
            died.since(deadline),
            self.exec.log()
        );
        Ok(deadline.since(died))
    }
}

/// Freezes the API server, and returns how long before its deadline each process was dead.
async fn margins(cluster: &Cluster, all: &[Deaf]) -> Result<Vec<Duration>> {
    let facts = try_join_all(all.iter().map(Deaf::facts)).await?;
    cluster.control_plane().freeze().await?;
    let pids: Vec<i32> = facts.iter().flat_map(|facts| facts.pids).collect();
    let deadlines = facts.iter().map(Deaf::last_deadline);
    let (died, deadlines) = tokio::join!(until_dead(&pids, PATIENCE), try_join_all(deadlines));
    let (died, deadlines) = (died?, deadlines?);
    let mut margins = vec![];
    for ((deaf, deadline), died) in all.iter().zip(deadlines).zip(died.chunks(2)) {
        deaf.exec.ends_with(LOST).await?;
        for died in died {
            margins.push(deaf.margin(deadline, *died)?);
        }
    }
    cluster.control_plane().thaw().await?;
    Ok(margins)
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
    let mut all = vec![];
    for round in 0..ROUNDS {
        until_all_work(&sidecars).await?;
        let started = now();
        let found = margins(&cluster, &start(&sidecars, round)?).await?;
        let (took, least) = (now().since(started), found.iter().min());
        tell(&format!(
            "measured: round {round}: {took:?}, dead {least:?} before the deadline"
        ))?;
        all.extend(found);
    }
    all.sort_unstable();
    tell(&format!(
        "measured: {} processes dead before the deadline: {:?} at least, median {:?}, at most {:?}",
        all.len(),
        all[0],
        all[all.len() / 2],
        all[all.len() - 1]
    ))
}

/// Starts the commands of a round, each under a lock of its own.
fn start(sidecars: &[Sidecar], round: usize) -> Result<Vec<Deaf>> {
    let mut all = vec![];
    for (number, sidecar) in sidecars.iter().cycle().take(ALONE).enumerate() {
        let lock = format!("{round}-alone-{number}");
        let ttl = TTL_SECONDS.to_string();
        let flags = ["--lock", &lock, "--session-ttl", &ttl];
        let user = &sidecar.pod.kubeconfig;
        all.push(Deaf::start(|script| {
            Exec::alone(BINARY, user, &flags, script)
        })?);
    }
    for command in 0..COMMANDS {
        for (number, sidecar) in sidecars.iter().enumerate() {
            let lock = format!("{round}-{number}-{command}");
            let flags = ["--lock", &lock];
            all.push(Deaf::start(|script| {
                Exec::start(BINARY, sidecar, &flags, script)
            })?);
        }
    }
    Ok(all)
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
