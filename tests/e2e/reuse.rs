//! One grant, many leases: an app that returns, and callers of one pod that wait for each other. The cost is counted
//! in requests to the API server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::harness::{Class, Cluster, Lease, Namespace, Proxy, TakeOver};
use crate::support::{Pair, acquire_in_time, sidecar};

const LIMIT: Duration = Duration::from_secs(30);

fn kept(wait_seconds: u64) -> Value {
    json!({"resource": "res", "ttlSeconds": 60, "keepSeconds": 600, "waitSeconds": wait_seconds})
}

/// What the API server says of the lock's grant.
async fn grant(namespace: &Namespace) -> Result<Value> {
    let lock = namespace.lock("res").await?.context("the lock")?;
    Ok(lock["status"].clone())
}

/// A lease that follows another one in the same grant.
fn ensure_follows(next: &Lease, before: &Lease) -> Result<()> {
    ensure!(next.token == before.token + 1, "{next:?} after {before:?}");
    let grant = |lease: &Lease| lease.id.rsplit_once('.').map(|(grant, _)| grant.to_owned());
    ensure!(grant(next) == grant(before), "{next:?} after {before:?}");
    Ok(())
}

/// How many requests have passed that are about locks.
fn of_locks(proxy: &Proxy) -> usize {
    let exchanges = proxy.exchanges();
    let others = [Class::Renew, Class::Watch, Class::List];
    exchanges
        .iter()
        .filter(|e| !others.contains(&e.class))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn reacquiring_a_kept_lock_writes_nothing() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("kept").await?;
    let proxy = Proxy::start(&cluster).await?;
    let a = sidecar(&namespace.pod("a").await?.through(&proxy.url)?, 15).await?;
    let mut lease = a.acquire_with(&kept(0)).await?.granted()?;
    let before = grant(&namespace).await?;
    ensure!(before["lease"]["kept"] == true, "{before}");
    let requests = of_locks(&proxy);
    for round in 0..20 {
        a.release_for_good(&lease.id).await?;
        a.renew(&lease.id).await?.problem(410, "lease_lost")?;
        let next = a.acquire_with(&kept(round % 2)).await?.granted()?;
        ensure_follows(&next, &lease)?;
        a.verify("res", lease.token)
            .await?
            .problem(409, "stale_token")?;
        lease = next;
    }
    let reads = 20;
    ensure!(of_locks(&proxy) == requests + reads, "only verifying asks");
    ensure!(grant(&namespace).await? == before, "nothing was written");
    // No caller asked to keep it any longer.
    a.release_for_good(&lease.id).await?;
    let plain = a.acquire("res").await?.granted()?;
    a.release_for_good(&plain.id).await?;
    ensure!(grant(&namespace).await?.get("holder").is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_lock_ends_with_its_sidecar() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("kept-dead", TakeOver::Peer, 5).await?;
    let first = a.acquire_with(&kept(0)).await?.granted()?;
    a.release_for_good(&first.id).await?;
    a.kill9()?;
    let second = acquire_in_time(&b, "res", LIMIT).await?;
    ensure!(second.token > first.token, "{second:?} after {first:?}");
    let lock = grant(&namespace).await?;
    ensure!(lock["holder"]["pod"] == "b", "{lock}");

    let again = b.acquire_with(&kept(0)).await?.problem(409, "lock_held")?;
    ensure!(again.json["holder"]["pod"] == "b", "{}", again.json);
    b.release_for_good(&second.id).await?;
    let third = b.acquire_with(&kept(0)).await?.granted()?;
    b.release_for_good(&third.id).await?;
    b.sigterm()?;
    b.ended().await?;
    ensure!(
        grant(&namespace).await?.get("holder").is_none(),
        "given back at the end"
    );
    Ok(())
}
