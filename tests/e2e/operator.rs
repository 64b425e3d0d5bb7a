//! The operator on a real API server, with the rights and the strict policies that we ship.

mod force;
mod housekeeping;
mod pods;

use std::time::Duration;

use anyhow::Result;

use std::sync::Arc;

use tokio::sync::OnceCell;

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

/// A strict cluster with one operator, which these tests share; started by the first who asks.
pub(crate) async fn looked_after() -> Result<(Arc<Cluster>, &'static Operator)> {
    static SHARED: OnceCell<Result<(Arc<Cluster>, Operator), String>> = OnceCell::const_new();

    let start = async || {
        let cluster = Cluster::of_its_own(TakeOver::Strict).await?;
        let pod = cluster.operator_pod("operator-of-many").await?;
        let args = ["--retain-seconds", "60", "--keep-sessions-seconds", "10"];
        let operator = Operator::start(BINARY, &pod, &args).await?;
        operator.until_active().await?;
        anyhow::Ok((cluster, operator))
    };
    let shared = SHARED.get_or_init(async || start().await.map_err(|error| format!("{error:#}")));
    match shared.await {
        Ok((cluster, operator)) => Ok((cluster.clone(), operator)),
        Err(error) => anyhow::bail!("{error}"),
    }
}
