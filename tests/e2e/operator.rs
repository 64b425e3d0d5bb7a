//! The operator on a real API server, with the rights and the strict policies that we ship.

mod availability;
mod bad_input;
mod bindings;
mod force;
mod housekeeping;
mod leader_label;
mod many;
mod not_injected;
mod outages;
mod pods;
mod rights;
mod sessions;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::harness::{Cluster, Operator, PATIENCE, eventually, now};
use crate::support::{
    BINARY, audit_lines_of, milliseconds, sidecar, until_described, until_queued, with_operator,
};

const TTL_SECONDS: u64 = 6;
const LIMIT: Duration = PATIENCE;
/// How long the operator waits for a silent session, of its TTL.
const SILENCE: f64 = 1.05;

/// Two replicas with this session TTL: the active one, and a standby that has seen everything.
async fn two(cluster: &Arc<Cluster>, ttl_seconds: u64) -> Result<(Operator, Operator)> {
    let ttl = ttl_seconds.to_string();
    let args = ["--session-ttl", ttl.as_str()];
    let active = Operator::start(BINARY, &cluster.operator_pod("op-0").await?, &args).await?;
    active.until_active().await?;
    let standby = Operator::start(BINARY, &cluster.operator_pod("op-1").await?, &args).await?;
    until_it_stands_by(cluster, &standby).await?;
    Ok((active, standby))
}

async fn until_it_stands_by(cluster: &Arc<Cluster>, operator: &Operator) -> Result<()> {
    let namespace = cluster.operator_namespace().await?;
    let what = format!("operator {} to stand by", operator.pod.name);
    eventually(&what, LIMIT, async || {
        let synced = operator.metric("leasehold_operator_synced").await.ok()?;
        let locks = namespace.all("distributedlocks").await.ok()?;
        let waiters = locks.first()?["status"]["waiters"].as_array()?;
        let is_queued = waiters
            .iter()
            .any(|waiter| waiter["podUid"] == *operator.pod.uid);
        (synced > 0.0 && is_queued).then_some(())
    })
    .await
}

/// How long a session was silent before it was revoked, by the wall clock of the one machine that all of this runs
/// on.
fn silence_before_its_end(session: &Value) -> Result<Duration> {
    let status = &session["status"];
    let renewed = milliseconds(&status["renewedAt"]).context("no renewal")?;
    let revoked = milliseconds(&status["revoked"]["at"]).context("no revocation")?;
    Ok(Duration::from_millis(u64::try_from(revoked - renewed)?))
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_holders_lock_is_handed_over_on_the_record() -> Result<()> {
    let (cluster, operator) = with_operator().await?;
    let namespace = cluster.namespace("killed").await?;
    let a = sidecar(&namespace.pod("a").await?, TTL_SECONDS).await?;
    let b = sidecar(&namespace.pod("b").await?, TTL_SECONDS).await?;
    let first = a.acquire("res").await?.granted()?;
    let waiting = b.wait_for("res", 60).await?;
    until_queued(&namespace, "res", 1).await?;
    a.kill9()?;
    let killed = now();
    let second = waiting.answer().await?.granted()?;
    println!(
        "measured: handed over {:?} after the holder was killed",
        now().since(killed)
    );
    assert!(second.token > first.token);
    let lock = namespace.lock("res").await?.unwrap_or_default();
    let incident = &lock["status"]["incidents"][0];
    assert_eq!(incident["kind"], "Expired");
    assert_eq!(incident["actor"], operator.pod.name);
    assert_eq!(incident["token"], first.token);

    let line = eventually("a line of the audit log", LIMIT, async || {
        audit_lines_of(&namespace, operator).pop()
    })
    .await?;
    assert_eq!(line["action"], "expire");
    assert_eq!(line["resource"], "res");
    assert_eq!(line["fencingToken"], first.token);
    let events = until_described(&namespace, "res", "HolderExpired").await?;
    let token = format!("token {}", first.token);
    assert!(
        matches!(&events[..], [event] if event.contains("pod a") && event.contains(&token)),
        "{events:?}"
    );
    Ok(())
}
