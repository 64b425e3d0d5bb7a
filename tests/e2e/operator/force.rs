//! A force release: it needs its own right, is recorded, and the app is notified.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::LIMIT;
use crate::harness::{Namespace, Output, eventually};
use crate::support::{
    audit_lines_of, grant_admin_rights, sidecar, until_described, until_queued, with_operator,
};

const REASON: &str = "the holder hangs in a loop, INC-4711";

fn force(lease: &Value, actor: &str, reason: &str) -> Value {
    json!({"leaseId": lease, "mode": "Force", "reason": reason, "actor": actor})
}

async fn request(namespace: &Namespace, person: &str, request: &Value) -> Result<Output> {
    let patch = json!({"spec": {"releaseRequest": request}}).to_string();
    let command = [
        "patch", "dlock", "res", "--type", "merge", "--patch", &patch, "--as", person,
    ];
    namespace.kubectl(&command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn force_release_needs_its_verb_and_is_recorded_and_explained() -> Result<()> {
    let (cluster, operator) = with_operator().await?;
    let namespace = cluster.namespace("force").await?;
    grant_admin_rights(&namespace).await?;
    let a = sidecar(&namespace.pod("a").await?, 60).await?;
    let b = sidecar(&namespace.pod("b").await?, 60).await?;
    let app = a.curl_hold(&json!({"resource": "res", "ownerId": "app"}))?;
    let held = app.until("acquired").await?;
    let token = held.data["fencingToken"].as_u64().context("a token")?;
    let waiting = b.wait_for("res", 120).await?;
    until_queued(&namespace, "res", 1).await?;
    let lock = namespace.lock("res").await?.context("the lock")?;
    let lease = &lock["status"]["lease"]["id"];

    for (person, actor, reason, word) in [
        ("john", "john", REASON, "force-release"),
        ("jane", "john", REASON, "actor"),
        ("jane", "jane", " ", "reason"),
    ] {
        let refused = request(&namespace, person, &force(lease, actor, reason)).await?;
        let refused = refused.refused()?;
        ensure!(refused.contains(word), "{refused}");
    }

    request(&namespace, "jane", &force(lease, "jane", REASON))
        .await?
        .ok()?;
    let lost = app.until("lost").await?;
    ensure!(lost.data["reason"] == "force_released", "{lost:?}");
    let next = waiting.answer().await?.granted()?;
    ensure!(next.token > token);
    a.verify("res", token).await?.problem(409, "stale_token")?;
    let lock = namespace.lock("res").await?.context("the lock")?;
    let incident = &lock["status"]["incidents"][0];
    ensure!(incident["kind"] == "ForceReleased", "{incident}");
    ensure!(
        incident["actor"] == "jane" && incident["reason"] == REASON,
        "{incident}"
    );
    ensure!(
        incident["leaseId"] == *lease && incident["token"] == token,
        "{incident}"
    );

    let line = eventually("a line of the audit log", LIMIT, async || {
        audit_lines_of(&namespace, operator).pop()
    });
    let line = line.await?;
    ensure!(line["action"] == "force-release", "{line}");
    ensure!(
        line["actorId"] == "jane" && line["reason"] == REASON,
        "{line}"
    );
    let events = until_described(&namespace, "res", "ForceReleased").await?;
    ensure!(
        matches!(&events[..], [event] if event.contains("jane") && event.contains(REASON)),
        "{events:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn request_for_an_ended_grant_gets_an_event_and_ends_nothing() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("late").await?;
    grant_admin_rights(&namespace).await?;
    let a = sidecar(&namespace.pod("a").await?, 60).await?;
    let over = a.acquire("res").await?.granted()?;
    a.release_for_good(&over.id).await?;
    let lease = a.acquire("res").await?.granted()?;
    let late = json!({"leaseId": over.id, "mode": "Force", "reason": REASON, "actor": "jane"});
    request(&namespace, "jane", &late).await?.ok()?;
    until_described(&namespace, "res", "ReleaseRequestIgnored").await?;
    ensure!(a.renew(&lease.id).await?.granted()?.token == lease.token);
    let lock = namespace.lock("res").await?.context("the lock")?;
    ensure!(lock["status"].get("incidents").is_none(), "{lock}");
    Ok(())
}
