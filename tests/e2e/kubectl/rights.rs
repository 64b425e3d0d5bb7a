//! The reading commands with the rights of leasehold-view alone, and without any.

use anyhow::{Result, ensure};

use super::{contains, row, run, run_as};
use crate::harness::{Namespace, PATIENCE, Sidecar, eventually};
use crate::support::{BINARY, bind, with_operator};

#[tokio::test(flavor = "multi_thread")]
async fn view_role_suffices_and_its_absence_is_named() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("rights").await?;
    bind(&namespace, "vera", ("ClusterRole", "leasehold-view")).await?;
    let launch = Sidecar::launch(BINARY, &namespace.pod("a").await?).session_ttl(60);
    let a = launch.arg("--elect=jobs").start().await?;
    a.acquire_for_long("res").await?.granted()?;
    eventually("a leader", PATIENCE, async || {
        let path = "/v1/elections/jobs";
        let answer = a.call(reqwest::Method::GET, path, None).await.ok()?;
        (answer.json["leader"] == true).then_some(())
    })
    .await?;
    let as_vera = async |args: &[&str]| run_as(&namespace, "vera", args).await;

    let listed = row(&as_vera(&["list"]).await?.ok()?, "res")?;
    ensure!(
        listed["POD"] == "a" && listed["SESSION"] == "live",
        "{listed}"
    );
    let session = row(&as_vera(&["sessions"]).await?.ok()?, "live")?;
    ensure!(
        session["POD"] == "a" && session["HOLDS"] == "2",
        "{session}"
    );
    let election = row(&as_vera(&["elections"]).await?.ok()?, "jobs")?;
    ensure!(election["LEADER"] == "a", "{election}");
    let top = row(&as_vera(&["top"]).await?.ok()?, "res")?;
    ensure!(top["POD"] == "a" && top["WAITING"] == "0", "{top}");
    let tree = as_vera(&["tree"]).await?.ok()?;
    contains(&tree, &["a  session ", "(live)", "─ "])?;
    let version = as_vera(&["version"]).await?.ok()?;
    let agents = format!("Agents:    {} (1)", env!("CARGO_PKG_VERSION"));
    contains(&version, &[&agents, "Operator:  unknown: you cannot list"])?;
    eventually("the operator's version", PATIENCE, async || {
        let version = run(&namespace, &["version"]).await.ok()?.ok().ok()?;
        let operator = format!("Operator:  {}", env!("CARGO_PKG_VERSION"));
        version.contains(&operator).then_some(())
    })
    .await?;
    let described = as_vera(&["describe", "res"]).await?.ok()?;
    contains(
        &described,
        &[
            "held by pod a",
            "you cannot get pods in namespace",
            "you cannot list events in namespace",
            "you cannot list distributedlocks in all namespaces",
        ],
    )?;
    let history = as_vera(&["history", "res"]).await?;
    ensure!(history.success, "{history:?}");
    contains(&history.stderr, &["you cannot list events"])?;
    contains(&as_vera(&["why", "res"]).await?.ok()?, &["held by pod a"])?;
    let waited = as_vera(&["wait", "res", "--for", "holder=a"]).await?;
    contains(&waited.ok()?, &["condition met"])?;
    let asked = as_vera(&["release", "res", "--yes", "--reason", "x"]).await?;
    contains(&asked.refused()?, &["patch", "leasehold-lock-admin"])?;

    is_named_if_it_is_missing(&namespace).await
}

/// Each command of a person without any right says which one is missing, and who grants it.
async fn is_named_if_it_is_missing(namespace: &Namespace) -> Result<()> {
    for command in [
        &["list"][..],
        &["list", "-A"],
        &["list", "-w"],
        &["sessions"],
        &["elections"],
        &["top"],
        &["tree"],
        &["describe", "res"],
        &["history", "res"],
        &["why", "res"],
        &["wait", "res", "--for", "free"],
        &["release", "res", "--yes", "--reason", "x"],
    ] {
        let refused = run_as(namespace, "nick", command).await?.refused()?;
        contains(&refused, &["nick", "leasehold.dev", "leasehold-view"])?;
    }
    let version = run_as(namespace, "nick", &["version"]).await?;
    contains(
        &version.ok()?,
        &["Plugin:    ", "list locksessions", "leasehold-view"],
    )
}
