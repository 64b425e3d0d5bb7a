//! The order of the queue, and what a waiter is promised.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use super::WAIT_SECONDS;
use crate::harness::{Class, Cluster, Proxy, TakeOver, now};
use crate::support::{sidecar, until_queued};

#[tokio::test(flavor = "multi_thread")]
async fn waiters_validity_ends_before_its_session() -> Result<()> {
    const TTL: Duration = Duration::from_secs(4);
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("told").await?;
    let a = sidecar(&namespace.pod("a").await?, 15).await?;
    // Its notes say when the renewals of the waiter's session were sent.
    let proxy = Proxy::start(&cluster).await?;
    let pod = namespace.pod("b").await?.through(&proxy.url)?;
    let b = sidecar(&pod, TTL.as_secs()).await?;
    let first = a.acquire("res").await?.granted()?;
    let waiting = b.wait_for("res", WAIT_SECONDS).await?;
    let asked = waiting.asked();
    until_queued(&namespace, "res", 1).await?;
    // That the wait outlasts two TTLs is the scenario.
    tokio::time::sleep(TTL * 2).await;
    a.release_for_good(&first.id).await?;

    let answer = waiting.answer().await?;
    let answered = now();
    ensure!(answered.since(asked) > TTL * 2);
    let renew_after = Duration::from_millis(answer.json["renewAfterMs"].as_u64().unwrap_or(0));
    let second = answer.granted()?;
    // As an app counts: from when it sent the request.
    let told_until = asked.after(second.valid_for);
    let left = told_until.since(answered);
    ensure!(left > TTL / 4, "{left:?} of use: granted with half a TTL");
    ensure!(asked.after(renew_after) > answered && renew_after < second.valid_for);
    let exchanges = proxy.exchanges();
    let last_renewal = exchanges.iter().rfind(|exchange| {
        let renews = [Class::CreateSession, Class::Renew].contains(&exchange.class);
        renews && exchange.at <= answered && exchange.status.is_some_and(|status| status < 300)
    });
    // The agent sent it no later than it passed here, and a challenger counts from later still.
    let sent = last_renewal.map(|exchange| exchange.at).unwrap_or_default();
    let session_until = sent.after(TTL.mul_f64(0.95));
    ensure!(
        told_until <= session_until,
        "{:?} too long",
        told_until.since(session_until)
    );
    b.renew(&second.id).await?.granted()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_waiters_are_served_in_order_with_rising_tokens() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("order").await?;
    let a = sidecar(&namespace.pod("a").await?, 30).await?;
    let mut last = a.acquire("res").await?.granted()?;
    let mut pods = Vec::new();
    let mut answers = FuturesUnordered::new();
    for place in 0..10 {
        let pod = sidecar(&namespace.pod(&format!("w{place}")).await?, 30).await?;
        let waiting = pod.wait_for("res", WAIT_SECONDS).await?;
        until_queued(&namespace, "res", place + 1).await?;
        answers.push(async move { (place, waiting.answer().await) });
        pods.push(pod);
    }
    a.release_for_good(&last.id).await?;
    for turn in 0..10 {
        let (place, answer) = answers
            .next()
            .await
            .unwrap_or((turn, a.get(&last.id).await));
        let lease = answer?.granted()?;
        ensure!(
            place == turn,
            "the one in place {place} was served as {turn}"
        );
        ensure!(lease.token > last.token, "{lease:?} after {last:?}");
        let lock = namespace.lock("res").await?.unwrap_or_default();
        ensure!(
            lock["status"]["holder"]["pod"] == pods[place].pod.name.as_str(),
            "{lock}"
        );
        pods[place].release_for_good(&lease.id).await?;
        last = lease;
    }
    let lock = namespace.lock("res").await?.unwrap_or_default();
    ensure!(lock["status"]["transitions"] == 11, "{lock}");
    ensure!(lock["status"].get("holder").is_none(), "{lock}");
    Ok(())
}
