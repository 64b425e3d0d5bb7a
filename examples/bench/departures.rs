//! How long a lock has no holder after its holder stops: by SIGTERM, or by kill -9.
//!
//! client-go's leader election is measured for comparison. Both use their default durations; the
//! longest is 15 s in both. The moments at which the holder stops are spread evenly over the time
//! between two renewals, or between two polls of the next candidate. So the result includes the
//! remaining part of that time.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;

use crate::client_go::{Candidate, Election};
use crate::harness::{Namespace, Sidecar, now};
use crate::rows::Rows;
use crate::transfer::{Before, PAUSE, Queue, handed_over, wait};

/// A sidecar that gets SIGTERM.
const SIGTERM: &str = "SIGTERM of the holder";
/// A client-go leader that gets SIGTERM.
const SIGTERM_PEER: &str = "SIGTERM of the leader, client-go";
/// A sidecar that gets SIGKILL.
const KILL: &str = "kill -9 of the holder";
/// A client-go leader that gets SIGKILL.
const KILL_PEER: &str = "kill -9 of the leader, client-go";

/// The lines of the table, with the two rows that each line compares.
pub(crate) const LINES: &[(&str, [&str; 2])] = &[
    ("SIGTERM", [SIGTERM, SIGTERM_PEER]),
    ("kill -9", [KILL, KILL_PEER]),
];

/// How many times our own holder gets SIGTERM.
const OUR_STOPS: usize = 20;
/// The number of concurrent pairs for the slow rounds. In each pair, one holder is killed.
const PAIRS: usize = 6;
/// How many times the leader of each client-go pair gets SIGTERM.
const STOPS: usize = 3;
/// The time between two renewals of our sessions: a third of their TTL.
const OUR_PERIOD: Duration = Duration::from_secs(5);
/// The longest time between two polls of a client-go standby: its `RetryPeriod` and 120 % jitter.
const PERIOD: Duration = Duration::from_millis(4_400);

/// Measures all rows of this file.
pub(crate) async fn measure(
    ours: &str,
    theirs: &str,
    namespace: &Namespace,
    rows: &mut Rows,
) -> Result<()> {
    // This runs alone: it takes milliseconds, and the other processes would distort it.
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

/// Returns the nth of `of` moments that are spread evenly over a period.
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

/// Runs one election: several leaders get SIGTERM, and the last one is killed.
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

/// Returns a candidate that has already stood by for some time.
async fn standing_by(election: &Election<'_>, nth: usize, of: usize) -> Result<Candidate> {
    let candidate = election.join()?;
    candidate.knows_the_leader().await?;
    tokio::time::sleep(PERIOD + phase(PERIOD, nth, of)).await;
    Ok(candidate)
}
