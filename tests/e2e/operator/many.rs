//! A pod that is killed with a thousand locks, and an operator that is killed while it reclaims them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::Value;

use super::{audit_lines_of, two};
use crate::harness::{
    Cluster, LongPoll, Namespace, Operator, PATIENCE, Sidecar, TakeOver, eventually, now,
};
use crate::support::{BUSY, sidecar, until_queued};

const LOCKS: usize = 1000;
/// Those that others wait for.
const CONTENDED: usize = 20;
/// How many are reclaimed when the first operator is killed.
const KILLED_AT: f64 = 300.0;
/// How many locks are held at the end: those, and the lead.
const HELD_AT_LAST: f64 = 21.0;
const LIMIT: Duration = PATIENCE;
const RECLAIMED: &str = r#"leasehold_operator_reclaimed_total{cause="expired"}"#;
const HELD: &str = r#"leasehold_operator_locks{state="held"}"#;

fn name(number: usize) -> String {
    format!("res-{number:04}")
}

/// Takes all of them in one pod; gives their tokens.
async fn take_all(holder: &Sidecar) -> Result<BTreeMap<String, u64>> {
    let taken = (0..LOCKS).map(async |number| -> Result<_> {
        let lease = holder.acquire_for_long(&name(number)).await?.granted()?;
        Ok((name(number), lease.token))
    });
    stream::iter(taken).buffer_unordered(32).try_collect().await
}

/// The last of them have a waiter: so no natural order is the one in which they are to be reclaimed.
async fn wait_for_some(namespace: &Namespace, waiter: &Sidecar) -> Result<Vec<LongPoll>> {
    let mut waiting = Vec::new();
    for number in LOCKS - CONTENDED..LOCKS {
        waiting.push(waiter.wait_for_long(&name(number), 240).await?);
        until_queued(namespace, &name(number), 1).await?;
    }
    Ok(waiting)
}

/// Waits until an operator has reclaimed this many.
async fn until_reclaimed(operator: &Operator, count: f64) -> Result<()> {
    let what = format!("{count} locks cleared by {}", operator.pod.name);
    eventually(&what, LIMIT, async || {
        let reclaimed = operator.metric(RECLAIMED).await.ok()?;
        (reclaimed >= count).then_some(())
    })
    .await
}

/// Waits until the lead and the contended locks are all that is held, as an operator sees it.
async fn until_all_are_cleared(operator: &Operator) -> Result<()> {
    eventually("all to be cleared", LIMIT, async || {
        let held = operator.metric(HELD).await.ok()?;
        ((held - HELD_AT_LAST).abs() < 0.5).then_some(())
    })
    .await
}

/// How many writes a pod made after the first `before` requests.
fn writes_of(cluster: &Arc<Cluster>, operator: &Operator, before: usize) -> Result<u32> {
    let served = cluster.control_plane().served()?.split_off(before);
    let is_write = |verb: &str| !["get", "list", "watch"].contains(&verb);
    let ours = served.iter().filter(|one| one.pod_uid == operator.pod.uid);
    Ok(ours.filter(|one| is_write(&one.verb)).count().try_into()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_finishes_the_work_of_a_killed_one() -> Result<()> {
    let _alone = BUSY.lock().await;
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let (first, second) = two(&cluster, 15).await?;
    let namespace = cluster.namespace("thousand").await?;
    let holder = sidecar(&namespace.pod("a").await?, 15).await?;
    let waiter = sidecar(&namespace.pod("b").await?, 60).await?;
    let tokens = take_all(&holder).await?;
    let waiting = wait_for_some(&namespace, &waiter).await?;

    let before = cluster.control_plane().served()?.len();
    holder.kill9()?;
    until_reclaimed(&first, 1.0).await?;
    let began = now();
    until_reclaimed(&first, KILLED_AT).await?;
    first.kill9()?;
    let (killed, by_first) = (now(), writes_of(&cluster, &first, before)?);
    second.until_active().await?;
    let led = now();
    until_all_are_cleared(&second).await?;
    let ended = now();
    let by_second = writes_of(&cluster, &second, before)?;
    let rate = |writes: u32, took: Duration| f64::from(writes) / took.as_secs_f64();
    println!(
        "measured: the first: {by_first} writes in {:?} ({:.0} a second); {:?} until the second led, then \
         {by_second} writes in {:?} ({:.0} a second)",
        killed.since(began),
        rate(by_first, killed.since(began)),
        led.since(killed),
        ended.since(led),
        rate(by_second, ended.since(led)),
    );

    let locks = namespace.all("distributedlocks").await?;
    ensure!(locks.len() == LOCKS);
    let mut handed_over = BTreeMap::new();
    for poll in waiting {
        let lease = poll.answer().await?.granted()?;
        handed_over.insert(lease.id, lease.token);
    }
    ensure!(handed_over.len() == CONTENDED);
    for lock in &locks {
        check_lock(lock, &tokens, &waiter)?;
    }
    check_order(&locks)?;
    until_all_is_recorded(&namespace, &[&first, &second], &tokens).await?;
    until_all_have_events(&namespace).await
}

/// It ended once, and is free or the waiter's, by a larger token.
fn check_lock(lock: &Value, tokens: &BTreeMap<String, u64>, waiter: &Sidecar) -> Result<()> {
    let name = lock["metadata"]["name"].as_str().context("a name")?;
    let token = *tokens.get(name).context("one of ours")?;
    let status = &lock["status"];
    let incidents = status["incidents"].as_array().context("incidents")?;
    ensure!(incidents.len() == 1, "{lock}");
    ensure!(incidents[0]["token"] == token, "{lock}");
    ensure!(incidents[0]["kind"] == "Expired", "{lock}");
    if is_contended(name) {
        ensure!(status["holder"]["podUid"] == *waiter.pod.uid, "{lock}");
        ensure!(status["token"].as_u64() > Some(token), "{lock}");
    } else {
        ensure!(status["holder"].is_null(), "{lock}");
        ensure!(status["token"] == token, "{lock}");
    }
    Ok(())
}

fn is_contended(lock: &str) -> bool {
    (LOCKS - CONTENDED..LOCKS).any(|number| name(number) == lock)
}

/// Those that others wait for were decided about first; which write then lands first is the store's.
fn check_order(locks: &[Value]) -> Result<()> {
    let (mut contended, mut others) = (vec![], vec![]);
    for lock in locks {
        let name = lock["metadata"]["name"].as_str().context("a name")?;
        let at = lock["status"]["incidents"][0]["at"].as_str();
        let at: jiff::Timestamp = at.context("a time")?.parse()?;
        if is_contended(name) {
            contended.push(at);
        } else {
            others.push(at);
        }
    }
    let (last, first) = (contended.iter().max(), others.iter().min());
    ensure!(last <= first, "{last:?} is not before {first:?}");
    Ok(())
}

/// Waits until both audit logs together have a line for the end of each grant; a repetition has the
/// same id.
async fn until_all_is_recorded(
    namespace: &Namespace,
    operators: &[&Operator],
    tokens: &BTreeMap<String, u64>,
) -> Result<()> {
    let lines = eventually("a line for each", LIMIT, async || {
        let lines: Vec<Value> = operators
            .iter()
            .flat_map(|one| audit_lines_of(namespace, one))
            .collect();
        let locks = lines.iter().filter_map(|line| line["lock"].as_str());
        (locks.collect::<BTreeSet<_>>().len() == LOCKS).then_some(lines)
    })
    .await?;
    for line in &lines {
        let token = line["lock"].as_str().and_then(|lock| tokens.get(lock));
        ensure!(line["fencingToken"].as_u64().as_ref() == token, "{line}");
    }
    let ids: BTreeSet<&str> = lines
        .iter()
        .filter_map(|line| line["id"].as_str())
        .collect();
    ensure!(ids.len() == LOCKS, "{} ids", ids.len());
    Ok(())
}

/// Waits until each of the locks has an Event about it, and none has two.
async fn until_all_have_events(namespace: &Namespace) -> Result<()> {
    let events = eventually("an Event for each", LIMIT, async || {
        let events = namespace.events().await.ok()?;
        (events.len() >= LOCKS).then_some(events)
    })
    .await?;
    let about: BTreeSet<_> = events
        .iter()
        .filter_map(|event| event["regarding"]["name"].as_str())
        .collect();
    ensure!(events.len() == LOCKS && about.len() == LOCKS);
    let is_end = |event: &Value| event["reason"] == "HolderExpired";
    ensure!(events.iter().all(is_end));
    Ok(())
}
