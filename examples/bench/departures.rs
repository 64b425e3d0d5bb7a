//! How long nobody has the lock when its holder goes: asked to by SIGTERM, or killed.
//!
//! Beside it client-go's leader election. Both have the durations that they have by default, of
//! which the longest is 15 s in both. When the holder goes is spread evenly over the
//! time between two renewals, or two looks of the next one: what is left of it is in the result.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;

use crate::client_go::{Candidate, Election};
use crate::harness::{Namespace, Sidecar, now};
use crate::rows::Rows;
use crate::transfer::{Before, PAUSE, Queue, handed_over, wait};

/// A sidecar that is told to stop.
const SIGTERM: &str = "SIGTERM of the holder";
/// A leader that is told to stop.
const SIGTERM_PEER: &str = "SIGTERM of the leader, client-go";
/// A sidecar that is killed.
const KILL: &str = "kill -9 of the holder";
/// A leader that is killed.
const KILL_PEER: &str = "kill -9 of the leader, client-go";

/// What stands beside what.
pub(crate) const LINES: &[(&str, [&str; 2])] = &[
    ("SIGTERM", [SIGTERM, SIGTERM_PEER]),
    ("kill -9", [KILL, KILL_PEER]),
];

/// How often our own holder is told to stop.
const OUR_STOPS: usize = 20;
/// How many pairs there are for the slow rounds, side by side; each is killed once.
const PAIRS: usize = 6;
/// How often each of client-go's pairs is told to stop.
const STOPS: usize = 3;
/// What our sessions' renewals are apart: a third of their TTL.
const OUR_PERIOD: Duration = Duration::from_secs(5);
/// What a standby's looks of client-go are apart at most: its `RetryPeriod` and 120 % jitter.
const PERIOD: Duration = Duration::from_millis(4_400);

/// Everything that this file measures.
pub(crate) async fn measure(
    ours: &str,
    theirs: &str,
    namespace: &Namespace,
    rows: &mut Rows,
) -> Result<()> {
    // Alone: it takes milliseconds, and the others' processes would be in it.
    for took in our_stops(ours, namespace).await? {
        rows.add(SIGTERM, took);
    }
    let kills = try_join_all((0..PAIRS).map(|nth| our_kill(ours, namespace, nth)));
    let elections = try_join_all((0..PAIRS).map(|nth| election(theirs, namespace, nth)));
    let (kills, elections) = tokio::try_join!(kills, elections)?;
    for took in kills {
        rows.add(KILL, took);
    }
    for (stops, kill) in elections {
        for took in stops {
            rows.add(SIGTERM_PEER, took);
        }
        rows.add(KILL_PEER, kill);
    }
    Ok(())
}

/// The nth of so many moments that are spread evenly over a period.
fn phase(period: Duration, nth: usize, of: usize) -> Duration {
    let of = u32::try_from(of).unwrap_or(u32::MAX);
    period / of * u32::try_from(nth).unwrap_or_default()
}

async fn our_stops(binary: &str, namespace: &Namespace) -> Result<Vec<Duration>> {
    const RESOURCE: &str = "bench:sigterm";

    let pod = namespace.pod("sigterm-a").await?;
    let next_pod = namespace.pod("sigterm-b").await?;
    let next = Sidecar::launch(binary, &next_pod).default_log().start();
    let next = next.await?;
    let mut stops = Vec::new();
    for _ in 0..OUR_STOPS {
        let launch = Sidecar::launch(binary, &pod).default_log();
        let launch = launch.arg("--on-term").arg("apps-ended");
        let holder = launch.start().await?;
        holder.acquire(RESOURCE).await?.granted()?;
        let queue = Queue::new(namespace, RESOURCE).await?;
        let stop = async { holder.sigterm() };
        let (lease, took) =
            handed_over(&queue, (Before::Idle, PAUSE), wait(&next, RESOURCE), stop).await?;
        next.release(&lease).await?.expect(204)?;
        holder.ended().await?;
        stops.push(took);
    }
    Ok(stops)
}

async fn our_kill(binary: &str, namespace: &Namespace, nth: usize) -> Result<Duration> {
    let resource = format!("bench:kill-{nth}");
    let pod = namespace.pod(&format!("kill-{nth}-a")).await?;
    let next_pod = namespace.pod(&format!("kill-{nth}-b")).await?;
    let holder = Sidecar::launch(binary, &pod).default_log().start().await?;
    let next = Sidecar::launch(binary, &next_pod).default_log();
    let next = next.start().await?;
    holder.acquire(&resource).await?.granted()?;
    let queue = Queue::new(namespace, &resource).await?;
    let pause = OUR_PERIOD + phase(OUR_PERIOD, nth, PAIRS);
    let kill = async { holder.kill9() };
    let (_, took) =
        handed_over(&queue, (Before::Idle, pause), wait(&next, &resource), kill).await?;
    Ok(took)
}

/// One election: the stops of its leaders, and a kill.
async fn election(
    binary: &str,
    namespace: &Namespace,
    nth: usize,
) -> Result<(Vec<Duration>, Duration)> {
    let election = Election {
        binary,
        access: namespace.cluster.control_plane().admin(),
        namespace: &namespace.name,
        lease: format!("bench-{nth}"),
    };
    let mut leader = election.join()?;
    leader.leads().await?;
    let mut stops = Vec::new();
    for round in 0..STOPS {
        let next = standing_by(&election, nth * STOPS + round, PAIRS * STOPS).await?;
        let start = now();
        leader.sigterm()?;
        stops.push(next.leads().await?.since(start));
        leader.ended().await?;
        leader = next;
    }
    let next = standing_by(&election, nth, PAIRS).await?;
    let start = now();
    leader.kill9()?;
    Ok((stops, next.leads().await?.since(start)))
}

/// A candidate that has stood by for a while.
async fn standing_by(election: &Election<'_>, nth: usize, of: usize) -> Result<Candidate> {
    let candidate = election.join()?;
    candidate.knows_the_leader().await?;
    tokio::time::sleep(PERIOD + phase(PERIOD, nth, of)).await;
    Ok(candidate)
}
