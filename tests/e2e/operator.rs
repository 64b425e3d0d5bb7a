//! The operator on a real API server, with the rights and the strict policies that we ship.

use std::time::Duration;

use anyhow::Result;

use crate::harness::{Cluster, Operator, TakeOver, eventually, now};
use crate::support::{BINARY, sidecar, until_queued};

const TTL_SECONDS: u64 = 6;
const LIMIT: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holders_lock_is_handed_over_with_incident_and_audit_line() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let operator = Operator::start(BINARY, &cluster.operator_pod("op-0").await?, &[]).await?;
    operator.until_active().await?;
    let namespace = cluster.namespace("killed").await?;
    let a = sidecar(&namespace.pod("a").await?, TTL_SECONDS).await?;
    let b = sidecar(&namespace.pod("b").await?, TTL_SECONDS).await?;
    let first = a.acquire("res").await?.granted()?;
    let waiting = b.wait_for("res", 60).await?;
    until_queued(&namespace, "res", 1).await?;
    a.kill9()?;
    let killed = now();
    let second = waiting.answer().await?.granted()?;
    println!("handed over after {:?}", now().since(killed));
    assert!(second.token > first.token);
    let lock = namespace.lock("res").await?.unwrap_or_default();
    let incident = &lock["status"]["incidents"][0];
    assert_eq!(incident["kind"], "Expired");
    assert_eq!(incident["actor"], "op-0");
    assert_eq!(incident["token"], first.token);
    let line = eventually("a line of the audit log", LIMIT, async || {
        operator.audit().pop()
    })
    .await?;
    assert_eq!(line["resource"], "res");
    assert_eq!(line["fencingToken"], first.token);
    Ok(())
}
