//! Faults while an app waits: an emptied queue, a recreated lock, a silent watch, an unavailable API server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::Value;

use super::WAIT_SECONDS;
use crate::harness::{
    Class, Cluster, LongPoll, Namespace, PATIENCE, Proxy, Sidecar, TakeOver, eventually, now,
};
use crate::plain_writes::PlainWrites;
use crate::support::{Pair, merge_status, sidecar, until_queued};

const LIMIT: Duration = PATIENCE;

async fn kubectl(namespace: &Namespace, args: &[&str]) -> Result<String> {
    namespace.kubectl(args).await?.ok()
}

/// Ends the grant by hand and deletes the lock, as the delete policy advises.
async fn delete(namespace: &Namespace) -> Result<()> {
    let free = r#"{"status":{"holder":null,"lease":null,"waiters":null}}"#;
    merge_status(namespace, "res", free).await?;
    kubectl(namespace, &["delete", "dlock", "res"]).await?;
    Ok(())
}

/// Each of them gets the lock and releases it, in any order, with tokens that rise.
async fn all_served<'a>(
    waiting: impl Iterator<Item = (LongPoll, &'a Sidecar)>,
    mut token: u64,
) -> Result<()> {
    let mut answers: FuturesUnordered<_> = waiting
        .map(async |(waiting, pod)| (waiting.answer().await, pod))
        .collect();
    while let Some((answer, pod)) = answers.next().await {
        let lease = answer?.granted()?;
        ensure!(lease.token > token, "{lease:?} after {token}");
        pod.release_for_good(&lease.id).await?;
        token = lease.token;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_queue_again_at_a_recreated_lock() -> Result<()> {
    let Pair { namespace, a, b: d } = Pair::start("anew", TakeOver::Peer, 9).await?;
    let proxy = Proxy::start(&namespace.cluster).await?;
    let b = sidecar(&namespace.pod("b2").await?.through(&proxy.url)?, 9).await?;
    let c = sidecar(&namespace.pod("c").await?.through(&proxy.url)?, 9).await?;
    d.acquire("other").await?.granted()?;
    let first = a.acquire("res").await?.granted()?;
    let waiting = [
        b.wait_for("res", WAIT_SECONDS).await?,
        c.wait_for("res", WAIT_SECONDS).await?,
    ];
    until_queued(&namespace, "res", 2).await?;
    let old = namespace.lock("res").await?.unwrap_or_default();
    // Else one of them might take the lock that is freed before it is deleted.
    proxy.pause();
    delete(&namespace).await?;
    let second = d.acquire("res").await?.granted()?;
    proxy.resume();
    until_queued(&namespace, "res", 2).await?;
    let new = namespace.lock("res").await?.unwrap_or_default();
    ensure!(new["metadata"]["uid"] != old["metadata"]["uid"], "{new}");
    ensure!(second.token > first.token, "{second:?} after {first:?}");
    d.release_for_good(&second.id).await?;
    all_served(waiting.into_iter().zip([&b, &c]), second.token).await?;
    let new = namespace.lock("res").await?.unwrap_or_default();
    ensure!(new["status"]["transitions"] == 3, "{new}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn holder_observes_a_deletion_within_a_second() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("deleted", TakeOver::Peer, 60).await?;
    let first = a.acquire("res").await?.granted()?;
    // The watch is open from some time after the session began; a waiter proves that it is.
    let waiting = b.wait_for("res", WAIT_SECONDS).await?;
    until_queued(&namespace, "res", 1).await?;
    a.release_for_good(&first.id).await?;
    let lease = waiting.answer().await?.granted()?;

    let writes = PlainWrites::start(&namespace).await?;
    delete(&namespace).await?;
    let deleted = now();
    let lost = eventually("the lease to be lost", LIMIT, async || {
        let answer = b.renew(&lease.id).await.ok()?;
        (answer.status != 200).then_some(answer)
    });
    let lost = lost.await?.problem(410, "lease_lost")?;
    let (heard, took) = (now(), now().since(deleted));
    println!("heard {took:?} after the deletion");
    writes.must_be_within(Duration::from_secs(1), deleted, heard)?;
    ensure!(lost.json["reason"] == "grant_gone", "{}", lost.json);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_is_found_within_a_third_of_the_ttl_without_a_watch() -> Result<()> {
    const TTL: Duration = Duration::from_secs(20);
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("stalled").await?;
    let a = sidecar(&namespace.pod("a").await?, TTL.as_secs()).await?;
    let proxy = Proxy::start(&cluster).await?;
    let pod = namespace.pod("b").await?.through(&proxy.url)?;
    let b = sidecar(&pod, TTL.as_secs()).await?;
    let first = a.acquire("res").await?.granted()?;
    let waiting = b.wait_for("res", WAIT_SECONDS).await?;
    until_queued(&namespace, "res", 1).await?;
    let watches = async |count: usize| {
        let what = format!("{count} watches");
        let is_open = async || {
            let exchanges = proxy.exchanges();
            let mut open = exchanges
                .iter()
                .filter(|exchange| exchange.class == Class::Watch);
            open.nth(count - 1)?.status.filter(|status| *status == 200)
        };
        eventually(&what, LIMIT, is_open).await
    };
    watches(1).await?;
    proxy.stall_watches();

    let reads = proxy.count(Class::GetLock);
    a.release_for_good(&first.id).await?;
    let released = now();
    let second = waiting.answer().await?.granted()?;
    let took = now().since(released);
    println!("found after {took:?}");
    // A third, a tenth of that as jitter, and a tenth of the TTL for a busy machine.
    ensure!(took < (TTL / 3).mul_f64(1.1) + TTL / 10, "{took:?}");
    ensure!(
        proxy.count(Class::GetLock) > reads,
        "by a read, not by the watch"
    );

    // The watch is reopened, and delivers events again.
    watches(2).await?;
    b.release_for_good(&second.id).await?;
    let third = a.acquire("res").await?.granted()?;
    let waiting = b.wait_for("res", WAIT_SECONDS).await?;
    until_queued(&namespace, "res", 1).await?;
    let reads = proxy.count(Class::GetLock);
    a.release_for_good(&third.id).await?;
    let fourth = waiting.answer().await?.granted()?;
    ensure!(proxy.count(Class::GetLock) == reads, "no read was needed");
    ensure!(proxy.count(Class::Watch) == 2, "one watch at a time");
    ensure!(fourth.token > third.token);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn waiter_stays_queued_through_an_outage() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    // The first renewal falls into the outage, and two thirds of this are left for its end.
    let Pair { namespace, a, b } = Pair::start_in(&cluster, "outage", 60).await?;
    let first = a.acquire_for_long("res").await?.granted()?;
    let waiting = b.wait_for("res", WAIT_SECONDS).await?;
    let place = until_queued(&namespace, "res", 1).await?;
    // A caller whose queue entry is not confirmed yet gets `store_unavailable`.
    eventually("the waiter's entry to be confirmed", PATIENCE, async || {
        b.log().contains("queued for lock").then_some(())
    })
    .await?;
    cluster.control_plane().kill_api_server().await?;
    eventually("the waiter to notice", PATIENCE, async || {
        b.log().contains("renewal failed").then_some(())
    })
    .await?;
    cluster.control_plane().start_api_server().await?;

    let after: Vec<Value> = until_queued(&namespace, "res", 1).await?;
    ensure!(after == place, "{after:?} after {place:?}");
    a.release_for_good(&first.id).await?;
    let second = waiting.answer().await?.granted()?;
    let lock = namespace.lock("res").await?.context("the lock")?;
    ensure!(
        lock["status"]["lease"]["id"] == place[0]["leaseId"],
        "{lock}"
    );
    ensure!(lock["status"]["token"] == second.token, "{lock}");
    Ok(())
}
