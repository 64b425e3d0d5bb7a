//! Long-held locks are marked, and unneeded objects are deleted.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::LIMIT;
use crate::harness::eventually;
use crate::support::{sidecar, with_operator};

/// The shortest time that a lock can be kept is a minute.
const A_MINUTE_AND_MORE: Duration = Duration::from_secs(100);

#[tokio::test(flavor = "multi_thread")]
async fn long_held_condition_takes_one_write_and_ends_with_release() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("long").await?;
    let a = sidecar(&namespace.pod("a").await?, 60).await?;
    let lease = a.acquire("res").await?.granted()?;
    let history = namespace.follow("res").await?;
    let soon = json!({"spec": {"longHeldSeconds": 1}});
    namespace.patch("distributedlocks/res", &soon).await?;
    let described = eventually("the mark and its Event", LIMIT, async || {
        let lock = namespace.lock("res").await.ok().flatten()?;
        let condition = &lock["status"]["conditions"][0];
        let is_marked = condition["type"] == "LongHeld" && condition["status"] == "True";
        let described = namespace
            .kubectl(&["describe", "dlock", "res"])
            .await
            .ok()?;
        let described = described.ok().ok()?;
        let has_event = described.contains("LongHeld") && described.contains("Events:");
        (is_marked && has_event).then_some(())
    });
    described.await?;
    ensure!(a.renew(&lease.id).await?.granted()?.token == lease.token);
    a.release_for_good(&lease.id).await?;
    let lock = namespace.lock("res").await?.context("the lock")?;
    ensure!(lock["status"].get("conditions").is_none(), "{lock}");
    let states = namespace.up_to_now(&history, "res").await?;
    let writes = states.len() - 1;
    ensure!(
        writes == 3,
        "the person's, the mark and the release: {states:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_lock_is_deleted_and_its_successors_tokens_are_larger() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("idle").await?;
    let a = sidecar(&namespace.pod("a").await?, 60).await?;
    let kept = a.acquire("kept").await?.granted()?;
    let first = a.acquire("res").await?.granted()?;
    a.release_for_good(&first.id).await?;
    eventually(
        "the idle lock to be deleted",
        A_MINUTE_AND_MORE,
        async || {
            a.renew(&kept.id).await.ok()?.granted().ok()?;
            namespace.lock("res").await.ok()?.is_none().then_some(())
        },
    )
    .await?;
    let second = a.acquire("res").await?.granted()?;
    ensure!(
        second.token >= first.token + 1_000,
        "{second:?} after {first:?}"
    );
    ensure!(a.renew(&kept.id).await?.granted()?.token == kept.token);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_session_is_deleted_once_no_lock_names_it() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("over").await?;
    let a = sidecar(&namespace.pod("a").await?, 60).await?;
    let lease = a.acquire("res").await?.granted()?;
    let session = namespace
        .holding_session("res")
        .await?
        .context("a session")?;
    let name = session["metadata"]["name"].as_str().context("a name")?;
    a.release_for_good(&lease.id).await?;
    a.sigterm()?;
    a.ended().await?;
    eventually("the session to be deleted", A_MINUTE_AND_MORE, async || {
        namespace.session(name).await.ok()?.is_none().then_some(())
    })
    .await?;
    Ok(())
}
