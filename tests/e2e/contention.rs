//! Many callers of one lock at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;

use crate::harness::{Cluster, Lease, PATIENCE, Proxy, Sidecar, TakeOver, eventually, now};
use crate::seed::seed;
use crate::support::{acquire_in_time, sidecar};

const PODS: usize = 4;
const ROUNDS: usize = 15;
const LIMIT: Duration = PATIENCE;

/// What the lock guards: it notices a second one inside, and a token that is not newer.
#[derive(Default)]
struct Guarded {
    inside: AtomicUsize,
    newest: AtomicU64,
}

impl Guarded {
    async fn visit(&self, token: u64) -> Result<()> {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst);
        ensure!(inside == 0, "{} were inside with token {token}", inside + 1);
        let before = self.newest.fetch_max(token, Ordering::SeqCst);
        ensure!(before < token, "token {token} came after {before}");
        // Time for another to come in, if one can.
        tokio::time::sleep(Duration::from_millis(3)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

async fn visits(pod: Arc<Sidecar>, guarded: Arc<Guarded>) -> Result<()> {
    for _ in 0..ROUNDS {
        let lease = acquire_in_time(&pod, "res", LIMIT).await?;
        guarded.visit(lease.token).await?;
        pod.release_for_good(&lease.id).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_callers_hold_the_lock_one_at_a_time() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("contention").await?;
    let guarded = Arc::new(Guarded::default());
    let mut tasks = Vec::new();
    for number in 0..PODS {
        let pod = namespace.pod(&format!("p{number}")).await?;
        let pod = Arc::new(sidecar(&pod, 15).await?);
        // Two apps in each pod.
        for _ in 0..2 {
            tasks.push(visits(Arc::clone(&pod), Arc::clone(&guarded)));
        }
    }
    let grants = tasks.len() * ROUNDS;
    try_join_all(tasks).await?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    ensure!(lock["status"]["transitions"] == grants, "{lock}");
    ensure!(lock["status"].get("holder").is_none(), "{lock}");
    Ok(())
}

/// An app behind a network that loses messages: it retries after refusals. Returns how often it held the lock.
async fn visits_in_noise(pod: Arc<Sidecar>, guarded: Arc<Guarded>, time: Duration) -> Result<u64> {
    let until = now().after(time);
    let mut visits = 0;
    while now() < until {
        let Some(lease) = try_in_noise(&pod).await? else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        guarded.visit(lease.token).await?;
        visits += 1;
        let released = pod.release(&lease.id).await?;
        ensure!([204, 202].contains(&released.status), "{released:?}");
    }
    Ok(visits)
}

async fn try_in_noise(pod: &Sidecar) -> Result<Option<Lease>> {
    let answer = pod.acquire("res").await?;
    match (answer.status, answer.code()) {
        (409, "lock_held") | (503, "store_unavailable") => Ok(None),
        _ => answer.granted().map(Some),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_loses_messages_costs_time_and_no_safety() -> Result<()> {
    let seed = seed();
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("noise").await?;
    let guarded = Arc::new(Guarded::default());
    let mut proxies = Vec::new();
    let mut tasks = Vec::new();
    for number in 0..3 {
        let proxy = Proxy::start(&cluster).await?;
        let pod = namespace.pod(&format!("p{number}")).await?;
        let pod = Arc::new(sidecar(&pod.through(&proxy.url)?, 15).await?);
        proxy.make_noise(seed.wrapping_add(number), 15);
        proxies.push(proxy);
        let time = Duration::from_secs(20);
        tasks.push(visits_in_noise(pod, Arc::clone(&guarded), time));
    }
    let visits: u64 = try_join_all(tasks).await?.iter().sum();
    println!("{visits} visits");
    ensure!(visits > 10, "only {visits} visits");
    for proxy in &proxies {
        proxy.make_noise(seed, 0);
        ensure!(proxy.met() > 0, "no message was lost");
    }
    // Nothing stays behind: a grant that no caller received is released.
    eventually("the lock to be free", LIMIT, async || {
        let lock = namespace.lock("res").await.ok().flatten()?;
        let granted = lock["status"]["transitions"].as_u64()?;
        (lock["status"].get("holder").is_none() && granted >= visits).then_some(())
    })
    .await
}
