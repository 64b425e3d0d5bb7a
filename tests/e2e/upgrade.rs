//! Binaries of two versions beside each other, on the definitions and policies of this one: each stop of
//! docs/runbooks/upgrade.md, and the way back.
//!
//! `make upgrade OLDER=REVISION` builds the older one from the repository's history.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use leasehold::k8s::names::object_name;
use leasehold::protocol::ids::Resource;
use reqwest::Method;
use serde_json::json;

use crate::harness::{Cluster, Operator, PATIENCE, Sidecar, TakeOver, eventually};
use crate::support::{
    BINARY, acquire_in_time, until_described, until_free, until_lost, until_queued,
};

const TTL_SECONDS: u64 = 6;

/// Which process has which version.
struct Stop {
    name: &'static str,
    operator: String,
    sidecars: [String; 2],
}

/// After each step of the runbook, with the pods recreated one after the other, and back.
fn stops(older: &str) -> Vec<Stop> {
    let stop = |name, operator: &str, a: &str, b: &str| Stop {
        name,
        operator: operator.to_owned(),
        sidecars: [a.to_owned(), b.to_owned()],
    };
    vec![
        stop("policies", older, older, older),
        stop("operator", BINARY, older, older),
        stop("half", BINARY, older, BINARY),
        stop("half-the-other-way", BINARY, BINARY, older),
        stop("operator-back", older, BINARY, BINARY),
    ]
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs an older version: make upgrade OLDER=REVISION"]
async fn versions_work_with_each_other_at_each_stop_of_an_upgrade() -> Result<()> {
    let older = std::env::var("LEASEHOLD_OLDER").context("LEASEHOLD_OLDER, a binary's path")?;
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    for stop in stops(&older) {
        work(&cluster, &stop).await.context(stop.name)?;
    }
    Ok(())
}

/// What each user relies on: hand-over, a crash, a person's force, and a lead.
async fn work(cluster: &Arc<Cluster>, stop: &Stop) -> Result<()> {
    let pod = cluster.operator_pod(&format!("op-{}", stop.name)).await?;
    let operator = Operator::start(&stop.operator, &pod, &["--session-ttl", "6"]).await?;
    operator.until_active().await?;
    let namespace = cluster.namespace(stop.name).await?;
    let [a, b] = &stop.sidecars;
    let start = async |name: &str, binary: &str| {
        let pod = namespace.pod(name).await?;
        let launch = Sidecar::launch(binary, &pod).session_ttl(TTL_SECONDS);
        launch.arg("--elect=jobs").start().await
    };
    let (a, b) = (start("a", a).await?, start("b", b).await?);

    for (from, to) in [(&a, &b), (&b, &a)] {
        let first = from.acquire("handed-over").await?.granted()?;
        let waiting = to.wait_for("handed-over", 120).await?;
        until_queued(&namespace, "handed-over", 1).await?;
        from.release_for_good(&first.id).await?;
        let second = waiting.answer().await?.granted()?;
        ensure!(second.token > first.token, "{second:?} after {first:?}");
        to.release_for_good(&second.id).await?;
    }

    let forced = a.acquire("forced").await?.granted()?;
    let lock = namespace.lock("forced").await?.context("the lock")?;
    let who = ["auth", "whoami", "--output", "json"];
    let who = namespace.kubectl(&who).await?.json()?;
    let request = json!({"spec": {"releaseRequest": {"leaseId": lock["status"]["lease"]["id"],
        "mode": "Force", "reason": "it hangs", "actor": who["status"]["userInfo"]["username"]}}});
    namespace.patch("distributedlocks/forced", &request).await?;
    let lost = until_lost(&a, &forced.id, PATIENCE).await?;
    ensure!(lost.json["reason"] == "force_released", "{}", lost.json);
    until_described(&namespace, "forced", "ForceReleased").await?;

    // Apps ask in both pods, as apps do that act on the answer. A candidate without that may lead first.
    let leads = async |of: &Sidecar| {
        let answer = of.call(Method::GET, "/v1/elections/jobs", None).await;
        let answer = answer.ok().map(|answer| answer.json);
        answer.filter(|answer| answer["leader"] == true)
    };
    let (leader, follower, first) = eventually("a first leader", PATIENCE, async || {
        let (of_a, of_b) = (leads(&a).await, leads(&b).await);
        let a_leads = of_a.map(|lead| (&a, &b, lead));
        a_leads.or_else(|| of_b.map(|lead| (&b, &a, lead)))
    })
    .await?;
    let lock = object_name(&Resource::parse("election:jobs")?);
    until_queued(&namespace, &lock, 1).await?;
    let lease = first["leaseId"].as_str().context("a lease")?;
    leader.release(lease).await?;
    let second = follower.until_leader("jobs").await?;
    ensure!(second["fencingToken"].as_u64() > first["fencingToken"].as_u64());

    let held = b.acquire("crashed").await?.granted()?;
    b.kill9()?;
    let next = acquire_in_time(&a, "crashed", PATIENCE).await?;
    ensure!(next.token > held.token, "{next:?} after {held:?}");
    a.release_for_good(&next.id).await?;
    let freed = until_free(&namespace, "crashed").await?;
    ensure!(
        freed["status"]["incidents"][0]["kind"] == "Expired",
        "{freed}"
    );
    operator.must_run()
}
