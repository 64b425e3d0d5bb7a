//! Sessions that are revoked or deleted by hand under live and crashed agents: the record, and what apps receive.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{LIMIT, with_operator};
use crate::harness::{Namespace, eventually};
use crate::support::{sidecar, until_free, until_lost, until_queued, until_renewed};

/// The name of the session that holds a lock.
async fn session_of(namespace: &Namespace, lock: &str) -> Result<String> {
    let session = until_renewed(namespace, lock, 1).await?;
    let name = session["metadata"]["name"].as_str().context("a name")?;
    Ok(name.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn manual_revocation_reaches_the_app_and_a_new_session_follows() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("revoked").await?;
    let a = sidecar(&namespace.pod("a").await?, 60).await?;
    let b = sidecar(&namespace.pod("b").await?, 60).await?;
    let lease = a.acquire("res").await?.granted()?;
    let waiting = b.wait_for("res", 60).await?;
    until_queued(&namespace, "res", 1).await?;
    let session = namespace.holding_session("res").await?.context("it")?;
    let name = session["metadata"]["name"].as_str().context("a name")?;
    let revoked = json!({"status": {"revoked": {
        "at": Timestamp::now().to_string(), "by": "jane", "reason": "Hangs"}}});
    let path = format!("locksessions/{name}/status");
    namespace.patch(&path, &revoked).await?;
    let next = waiting.answer().await?.granted()?;
    ensure!(next.token > lease.token, "{next:?} after {lease:?}");
    let lost = until_lost(&a, &lease.id, LIMIT).await?;
    ensure!(lost.json["reason"] == "session_revoked", "{}", lost.json);
    let lock = namespace.lock("res").await?.context("the lock")?;
    let incident = &lock["status"]["incidents"][0];
    let reason = incident["reason"].as_str().unwrap_or_default();
    ensure!(
        incident["kind"] == "Expired" && reason.contains("jane"),
        "{incident}"
    );
    // Long before its next renewal. The watch may report the lock before the agent knows of the session: an acquire
    // in between holds nothing, and is retried.
    let again = eventually("another session", LIMIT, async || {
        let answer = a.acquire("other").await;
        let between = answer.as_ref().is_ok_and(|a| a.code() == "session_lost");
        (!between).then_some(answer)
    });
    again.await??.granted()?;
    let other = namespace.holding_session("other").await?.context("one")?;
    ensure!(other["metadata"]["name"] != name, "{other}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_session_is_recorded_unless_its_agent_releases() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("unsessioned").await?;
    let dies = sidecar(&namespace.pod("dies").await?, 6).await?;
    let lives = sidecar(&namespace.pod("lives").await?, 20).await?;
    dies.acquire("left").await?.granted()?;
    let lease = lives.acquire("released").await?.granted()?;
    let dead = session_of(&namespace, "left").await?;
    // By then the app's promise will be over soon, and the operator waits for a whole TTL.
    until_renewed(&namespace, "released", 2).await?;
    let living = session_of(&namespace, "released").await?;
    dies.kill9()?;
    for session in [&dead, &living] {
        namespace
            .kubectl(&["delete", "lsession", session])
            .await?
            .ok()?;
    }
    let lost = until_lost(&lives, &lease.id, LIMIT).await?;
    ensure!(lost.json["reason"] == "session_revoked", "{}", lost.json);
    let released = until_free(&namespace, "released").await?;
    ensure!(released["status"]["incidents"].is_null(), "{released}");
    let left = until_free(&namespace, "left").await?;
    let incident = &left["status"]["incidents"][0];
    let reason = incident["reason"].as_str().unwrap_or_default();
    ensure!(incident["kind"] == "Expired", "{incident}");
    ensure!(reason.contains("was missing"), "{incident}");
    eventually("its Event", LIMIT, async || {
        let events = namespace.events().await.ok()?;
        let is_it = |event: &Value| event["reason"] == "HolderExpired";
        events.iter().any(is_it).then_some(())
    })
    .await
}
