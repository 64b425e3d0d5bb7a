//! A namespace that lists as fast as the API server allows, beside one whose leases must continue.
//!
//! The chart's flow control is on, as by default. The flood waits in its own namespace's queues,
//! and renewals have their own priority level.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::app::{App, KEEP, Wanted};
use crate::handover::between;
use crate::harness::{Namespace, now};
use crate::install::Leasehold;

/// The TTL that the chart sets for all sidecars.
const TTL: Duration = Duration::from_secs(15);
/// The number of concurrent callers, and the number of locks in each answer.
const CALLERS: usize = 100;
const LOCKS: usize = 300;
/// The duration: a lease without renewals would be lost more than once.
const FLOOD: Duration = Duration::from_secs(32);

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_lists_from_one_namespace_costs_another_no_lease() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let (quiet, noisy) = (
        leasehold.namespace("quiet").await?,
        leasehold.namespace("noisy").await?,
    );
    let machine = leasehold.machine;
    let app = machine.app(&quiet, "a", KEEP, &Wanted::default()).await?;
    let mut log = app.log()?;
    log.until("\"acquired\":true").await?;
    make_locks(&noisy).await?;
    let before = (grant(&quiet).await?, waited(&noisy).await?);
    let idle = take_and_release(&app).await?;

    let began = Timestamp::now();
    let (answered, slowest) = tokio::join!(flood(&noisy), slowest_turn(&app));
    let (answered, (turns, slowest)) = (answered?, slowest?);
    let ended = Timestamp::now();

    let waited = waited(&noisy).await? - before.1;
    let requests = answered.0 + answered.1;
    crate::tell(&format!(
        "measured: flood of {CALLERS} callers in {FLOOD:?}: {requests} lists of {LOCKS} locks, {} of them refused, \
         {:?} each in the API server's lines; in the other namespace each of {turns} turns took {slowest:?} at most ({idle:?} before)",
        answered.1,
        Duration::from_secs_f64(waited) / requests.max(1)
    ))?;
    // On average a request was always waiting: more arrived than the priority level admits.
    ensure!(waited > FLOOD.as_secs_f64(), "not a flood: {waited} s");

    let lines = log.lines()?;
    let lost = lines.iter().find(|(_, line)| line.contains("\"code\""));
    ensure!(lost.is_none(), "{lost:?}");
    let meanwhile = lines.iter().filter(|(at, _)| began < *at && *at < ended);
    let longest = longest_gap(meanwhile.map(|(at, _)| *at))?;
    ensure!(longest < TTL, "no renewal for {longest:?}");
    ensure!(turns > 2, "the other namespace had {turns} turns");
    ensure!(grant(&quiet).await? == before.0, "it is another grant");
    Ok(())
}

async fn make_locks(namespace: &Namespace) -> Result<()> {
    let made = stream::iter(0..LOCKS).map(async |number| {
        let name = format!("lock-{number}");
        let lock = json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
            "metadata": {"name": name}, "spec": {"resource": name}});
        namespace.create(&lock).await
    });
    let made: Vec<_> = made.buffer_unordered(16).collect().await;
    made.into_iter().collect::<Result<Vec<_>>>().map(drop)
}

/// Lists locks with a pod's rights, from all callers at once. Returns the numbers of answers and
/// refusals.
async fn flood(noisy: &Namespace) -> Result<(u32, u32)> {
    let token = noisy.token("default", None).await?;
    let caller = noisy.kubeconfig("flood", &token)?;
    let path = format!(
        "/apis/leasehold.dev/v1alpha1/namespaces/{}/distributedlocks",
        noisy.name
    );
    let end = now().after(FLOOD);
    let (answered, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    let callers = (0..CALLERS).map(async |_| {
        let client = caller.client().await?;
        while now() < end {
            let request = http::Request::get(&path).body(vec![])?;
            match client.request_text(request).await {
                Ok(_) => answered.fetch_add(1, Ordering::Relaxed),
                Err(_) => refused.fetch_add(1, Ordering::Relaxed),
            };
        }
        anyhow::Ok(())
    });
    for done in join_all(callers).await {
        done?;
    }
    Ok((answered.into_inner(), refused.into_inner()))
}

/// Acquires and releases another lock repeatedly during the flood. Returns the number of turns, and
/// the longest duration.
async fn slowest_turn(app: &App) -> Result<(usize, Duration)> {
    let end = now().after(FLOOD);
    let (mut turns, mut slowest) = (0, Duration::ZERO);
    while now() < end {
        slowest = slowest.max(take_and_release(app).await?);
        turns += 1;
    }
    Ok((turns, slowest))
}

async fn take_and_release(app: &App) -> Result<Duration> {
    let began = now();
    // Only its duration may increase.
    let lease = app.take("turn").await?;
    app.let_go(&lease).await?;
    Ok(now().since(began))
}

/// Returns the holder of `orders`, and its token.
async fn grant(namespace: &Namespace) -> Result<Value> {
    let lock = namespace.lock("orders").await?.context("no such lock")?;
    let status = &lock["status"];
    ensure!(!status["holder"].is_null(), "{status}");
    Ok(json!([status["holder"], status["token"]]))
}

/// Returns the total waiting time of all requests except renewals, in seconds, by the API server's
/// metrics.
async fn waited(namespace: &Namespace) -> Result<f64> {
    let request = http::Request::get("/metrics").body(vec![])?;
    let metrics = namespace.client.request_text(request).await?;
    let name = "apiserver_flowcontrol_request_wait_duration_seconds_sum";
    let mut seconds = 0.0;
    for line in metrics.lines().filter(|line| line.starts_with(name)) {
        if line.contains("flow_schema=\"leasehold\"") {
            let (_, value) = line.rsplit_once(' ').context("a metric has a value")?;
            seconds += value.parse::<f64>()?;
        }
    }
    Ok(seconds)
}

/// Returns the longest time between two consecutive ones.
fn longest_gap(times: impl Iterator<Item = Timestamp>) -> Result<Duration> {
    let times: Vec<_> = times.collect();
    ensure!(times.len() > 2, "{times:?}");
    let mut longest = Duration::ZERO;
    for pair in times.windows(2) {
        longest = longest.max(between(pair[0], pair[1])?);
    }
    Ok(longest)
}
