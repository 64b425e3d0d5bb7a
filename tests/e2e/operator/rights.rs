//! An operator without its rights: it does not lead, and logs the remedy.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::harness::{Cluster, Operator, PATIENCE, Pod, TakeOver, eventually, now};
use crate::support::{BINARY, sidecar, until_free};

/// An API server continues an allowed watch until it ends, after half a minute and more.
const LIMIT: Duration = PATIENCE;
const ELECTION: &str = "leasehold-operator";
const FILE: &str = "charts/leasehold/files/rbac/operator.yaml";

/// How often the log said that this kind may not be watched.
fn said(operator: &Operator, kind: &str) -> usize {
    let log = operator.log();
    let lines = log.lines();
    lines
        .filter(|line| line.contains("list/watch forbidden") && line.contains(FILE))
        .filter(|line| line.contains(&format!(r#""kind":"{kind}""#)))
        .count()
}

async fn until_not_ready(operator: &Operator) -> Result<()> {
    eventually("it to be unready, for its rights", LIMIT, async || {
        let (status, why) = operator.admin("/readyz").await.ok()?;
        let leads = operator.metric("leasehold_operator_leading").await.ok()?;
        let is_told = why.contains("forbidden") && why.contains(FILE);
        (status == 503 && is_told && leads < 0.5).then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_without_rights_does_not_lead_and_logs_the_remedy() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    cluster.take_operators_rights().await?;
    let started = now();
    let pod = cluster.operator_pod("op-0").await?;
    let operator = Operator::start(BINARY, &pod, &["--session-ttl", "5"]).await?;
    until_not_ready(&operator).await?;
    for kind in ["lock", "session", "pod"] {
        let series = format!("leasehold_operator_watch_errors_total{{kind=\"{kind}\"}}");
        let what = format!("some tries to see {kind}s");
        eventually(&what, LIMIT, async || {
            let errors = operator.metric(&series).await.ok()?;
            (errors >= 6.0).then_some(())
        })
        .await?;
        let times = u32::try_from(said(&operator, kind))?;
        // No more often than every half minute.
        let half_minutes = now().since(started).as_secs() / 30;
        ensure!(times >= 1, "nobody says that {kind}s cannot be seen");
        ensure!(u64::from(times) <= 1 + half_minutes, "{times} times");
    }
    let library = operator.log().matches("error with 403").count();
    ensure!(library == 0, "a library says it in each try");
    let home = cluster.operator_namespace().await?;
    let locks = home.all("distributedlocks").await?;
    ensure!(locks.is_empty(), "it ran for the lead: {locks:?}");

    cluster.give_operators_rights().await?;
    operator.until_active().await?;
    ensure!(operator.admin("/readyz").await?.0 == 200);
    let namespace = cluster.namespace("rights").await?;
    let holder = sidecar(&namespace.pod("a").await?, 3).await?;
    holder.acquire("res").await?.granted()?;
    holder.kill9()?;
    until_free(&namespace, "res").await?;

    cluster.take_operators_rights().await?;
    until_not_ready(&operator).await?;
    let election = eventually("the lead to be given up", LIMIT, async || {
        let locks = home.all("distributedlocks").await.ok()?;
        let lock = locks.into_iter().next()?;
        lock["status"]["holder"].is_null().then_some(lock)
    })
    .await?;
    let resource = election["spec"]["resource"].as_str().unwrap_or_default();
    ensure!(resource.ends_with(ELECTION), "{election}");
    ensure!(election["status"]["incidents"].is_null(), "{election}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_label_right_is_reported_with_its_file() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let pod = cluster.operator_pod("op-0").await?;
    let operator = Operator::start(BINARY, &pod, &["--leader-labels"]).await?;
    eventually("a word on the right to patch pods", LIMIT, async || {
        let log = operator.log();
        let mut lines = log.lines();
        lines.find(|line| {
            line.contains("cannot patch") && line.contains("operator-leader-labels.yaml")
        })?;
        Some(())
    })
    .await?;
    ensure!(operator.admin("/readyz").await?.0 == 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_own_pod_identity_is_logged_once() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let elsewhere = cluster.namespace("elsewhere").await?;
    let pod = cluster.operator_pod("op-0").await?;
    let other = cluster.operator_pod("op-1").await?;
    for (what, said, words) in [
        (
            "uid",
            Pod {
                uid: other.uid.clone(),
                ..pod.clone()
            },
            "has uid",
        ),
        (
            "name",
            Pod {
                name: "op-2".into(),
                ..pod.clone()
            },
            "no pod op-2",
        ),
        (
            "namespace",
            Pod {
                namespace: elsewhere.name.clone(),
                ..pod.clone()
            },
            "no pod op-0",
        ),
    ] {
        let operator = Operator::start(BINARY, &said, &[]).await?;
        let is_it = |line: &&str| line.contains("pod identity mismatch");
        let word = format!("a word on the wrong {what}");
        let line = eventually(&word, LIMIT, async || {
            operator.log().lines().find(is_it).map(str::to_owned)
        })
        .await?;
        ensure!(line.contains(words) && line.contains("--pod-uid"), "{line}");
        ensure!(operator.log().lines().filter(is_it).count() == 1);
    }
    Ok(())
}
