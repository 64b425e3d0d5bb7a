//! Many agents that ask for one lock at the same time: all get it, and the API server's own counters show the cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use futures::future::try_join_all;
use futures::stream;
use leasehold::protocol::time::Moment;

use crate::harness::{Cluster, Lease, Namespace, Relay, Requests, Sidecar, TakeOver, now};
use crate::support::BINARY;

const AGENTS: usize = 200;
/// Within this time all of them have asked.
const ASKED_WITHIN: Duration = Duration::from_millis(900);
const HELD_FOR: Duration = Duration::from_millis(10);
const BETWEEN_SAMPLES: Duration = Duration::from_millis(500);
const WAIT_SECONDS: u64 = 240;
/// What an acquisition may cost the API server beside the waiting, on a machine that is busy with other things too.
/// When every conflict was retried at once, it was 61 with the waiting.
const REQUESTS_EACH: u64 = 10;
/// A waiter renews its session and reads the lock this often: a third of the default TTL.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// How many requests that is each time.
const REQUESTS_PER_POLL: u128 = 2;

/// What the lock guards: it notices a second one inside, and a token that is not newer.
#[derive(Default)]
struct Guarded {
    inside: AtomicUsize,
    newest: AtomicU64,
    visits: AtomicUsize,
}

impl Guarded {
    async fn visit(&self, token: u64) -> Result<()> {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst);
        ensure!(inside == 0, "{} were inside with token {token}", inside + 1);
        let before = self.newest.swap(token, Ordering::SeqCst);
        ensure!(before < token, "token {token} came after {before}");
        tokio::time::sleep(HELD_FOR).await;
        self.visits.fetch_add(1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

/// How far away the API server is in a second run: as far as a managed one may be.
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// Two hundred sidecars share the machine with the API server, so they are better optimized: `make crowd` sets it.
fn binary() -> String {
    std::env::var("LEASEHOLD_OPTIMIZED").unwrap_or_else(|_| BINARY.to_owned())
}

/// This many sidecars, each a process with a pod and a token of its own. None has made a request yet.
async fn crowd(namespace: &Namespace, way: Option<&Relay>) -> Result<Vec<Sidecar>> {
    // Rights are the account's: once the first pod has them, all have.
    let first = namespace.pod("p0").await?;
    let binary = binary();
    let started = stream::iter(0..AGENTS).map(async |number| {
        let pod = match number {
            0 => first.clone(),
            _ => namespace.pod_of(&format!("p{number}"), "app").await?,
        };
        let pod = match way {
            Some(relay) => pod.over(relay, &namespace.cluster)?,
            None => pod,
        };
        Sidecar::launch(&binary, &pod).default_log().start().await
    });
    let started: Vec<Result<Sidecar>> = started.buffer_unordered(8).collect().await;
    started.into_iter().collect()
}

/// A new control plane delays the first requests for a kind by a second or two, until it has set itself up.
async fn warm_up(namespace: &Namespace) -> Result<()> {
    let pod = namespace.pod_of("first", "app").await?;
    let agent = Sidecar::start(BINARY, &pod).await?;
    let lease = agent.acquire("other").await?.granted()?;
    agent.release_for_good(&lease.id).await?;
    agent.kill9()
}

/// Requests the lock as an app does: again, if the API server did not answer the sidecar in time, and nothing was
/// acquired. Returns how long that took, too.
async fn acquire(agent: &Sidecar) -> Result<(Lease, Duration)> {
    let begin = now();
    loop {
        let answer = agent.wait_for("res", WAIT_SECONDS).await?.answer().await?;
        let took = now().since(begin);
        let is_busy = answer.code() == "store_unavailable" && took.as_secs() < WAIT_SECONDS;
        match answer.retry_after.as_deref().filter(|_| is_busy) {
            Some(pause) => tokio::time::sleep(Duration::from_secs(pause.parse()?)).await,
            None => return Ok((answer.granted()?, took)),
        }
    }
}

async fn visit(agent: &Sidecar, guarded: &Guarded, begin: Moment) -> Result<Duration> {
    let at = begin.after(ASKED_WITHIN.mul_f64(fastrand::f64()));
    tokio::time::sleep(at.since(now())).await;
    let (lease, took) = acquire(agent).await?;
    guarded.visit(lease.token).await?;
    let released = agent.release(&lease.id).await?;
    // 202 says that the store has not confirmed it yet.
    ensure!([204, 202].contains(&released.status), "{released:?}");
    Ok(took)
}

/// The API server's counts from time to time, until stopped.
async fn sample(admin: &kube::Client, stop: &AtomicBool) -> Result<Vec<(Moment, Requests)>> {
    let mut samples = Vec::new();
    loop {
        let is_last = stop.load(Ordering::SeqCst);
        let counted = Requests::counted(admin).await?;
        samples.push((now(), counted));
        if is_last {
            return Ok(samples);
        }
        tokio::time::sleep(BETWEEN_SAMPLES).await;
    }
}

/// Requests per second in the worst window of a second or a little more.
fn peak(samples: &[(Moment, Requests)]) -> f64 {
    let mut worst: f64 = 0.0;
    for (begin, (from, before)) in samples.iter().enumerate() {
        let mut later = samples[begin..].iter();
        let Some((to, after)) = later.find(|(at, _)| at.since(*from) >= Duration::from_secs(1))
        else {
            break;
        };
        let came = u32::try_from(after.since(before).total()).unwrap_or(u32::MAX);
        worst = worst.max(f64::from(came) / to.since(*from).as_secs_f64());
    }
    worst
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the machine for itself; `make crowd` runs it"]
async fn two_hundred_concurrent_agents_are_all_served() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    serve_a_crowd(&cluster, "crowd", None).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the machine for itself; `make crowd` runs it"]
async fn two_hundred_agents_far_from_the_api_server_are_all_served() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let relay = Relay::start(&cluster, ROUND_TRIP).await?;
    serve_a_crowd(&cluster, "far-crowd", Some(&relay)).await
}

async fn serve_a_crowd(cluster: &Arc<Cluster>, name: &str, way: Option<&Relay>) -> Result<()> {
    let namespace = cluster.namespace(name).await?;
    let admin = cluster.admin().await?;
    let agents = crowd(&namespace, way).await?;
    warm_up(&namespace).await?;
    let before = Requests::counted(&admin).await?;

    let guarded = Guarded::default();
    let done = AtomicBool::new(false);
    let begin = now();
    let (waited, samples) = tokio::try_join!(
        async {
            let visits = agents.iter().map(|agent| visit(agent, &guarded, begin));
            let waited = try_join_all(visits).await;
            done.store(true, Ordering::SeqCst);
            waited
        },
        sample(&admin, &done)
    )?;
    let (end, after) = samples.last().context("a sample")?;
    let came = after.since(&before);
    // How long all wait is the machine's, and so is what that costs.
    let looks = waited.iter().sum::<Duration>().as_millis() / POLL_INTERVAL.as_millis();
    let by_waiting = u64::try_from(looks * REQUESTS_PER_POLL)?;
    let others = came.total().saturating_sub(by_waiting);
    let each = others.div_ceil(u64::try_from(AGENTS)?);
    println!(
        "{AGENTS} served in {:?}, the slowest after {:?}, with {} requests, {by_waiting} of them by \
         waiting, {each} others for each, {:.0} in the worst second:\n{came}",
        end.since(begin),
        waited.iter().max(),
        came.total(),
        peak(&samples)
    );
    ensure!(guarded.visits.load(Ordering::SeqCst) == AGENTS);
    let lock = namespace.lock("res").await?.unwrap_or_default();
    ensure!(lock["status"]["transitions"] == AGENTS, "{lock}");
    ensure!(lock["status"].get("waiters").is_none(), "{lock}");
    ensure!(each <= REQUESTS_EACH, "{each} requests for each");
    Ok(())
}
