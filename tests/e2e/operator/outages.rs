//! What the operator makes of an API server that was away, and of a store that was restored.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::{LIMIT, SILENCE, silence_before_its_end};
use crate::harness::{Cluster, Operator, Served, Sidecar, TakeOver, eventually};
use crate::support::{BINARY, sidecar, until_described, until_free, until_renewed};

/// What the runbook gives to `--bump-revision`.
const BUMP: u64 = 1_000_000_000;
const WENT_BACK: &str = "leasehold_operator_store_went_back";
/// The session TTL of processes that are killed here.
const SHORT: u64 = 3;

async fn operator(cluster: &std::sync::Arc<Cluster>) -> Result<Operator> {
    let operator = Operator::start(BINARY, &cluster.operator_pod("op-0").await?, &[]).await?;
    operator.until_active().await?;
    Ok(operator)
}

async fn until_metric(operator: &Operator, series: &str, value: f64) -> Result<()> {
    let what = format!("{series} to be {value}");
    eventually(&what, Duration::from_secs(60), async || {
        let found = operator.metric(series).await.ok()?;
        ((found - value).abs() < 0.5).then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_sessions_expired_in_an_outage_are_reclaimed_after_it() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let operator = operator(&cluster).await?;
    let namespace = cluster.namespace("outage").await?;
    let dies = sidecar(&namespace.pod("dies").await?, SHORT).await?;
    // The outage comes before its first renewal, so that it has nearly all of this to end.
    let lives = sidecar(&namespace.pod("lives").await?, 90).await?;
    dies.acquire("res").await?.granted()?;
    let kept = lives.acquire_for_long("kept").await?.granted()?;
    let dead = until_renewed(&namespace, "res", 1).await?;
    let dead = dead["metadata"]["name"].as_str().context("a name")?;
    let living = namespace.holding_session("kept").await?;
    let living = living.context("a session")?;
    let renewals = living["status"]["renewals"].as_u64().unwrap_or_default();

    cluster.control_plane().kill_api_server().await?;
    dies.kill9()?;
    eventually("the outage to be noticed", LIMIT, async || {
        let series = r#"leasehold_operator_watch_errors_total{kind="session"}"#;
        let errors = operator.metric(series).await.ok()?;
        (errors > 0.0).then_some(())
    })
    .await?;
    ensure!(operator.admin("/readyz").await?.0 == 200);
    cluster.control_plane().start_api_server().await?;

    let free = until_free(&namespace, "res").await?;
    ensure!(
        free["status"]["incidents"][0]["kind"] == "Expired",
        "{free}"
    );
    let session = namespace.session(dead).await?.context("a session")?;
    let silent = silence_before_its_end(&session)?;
    println!("measured: revoked after {silent:?} of silence");
    ensure!(silent >= Duration::from_secs(SHORT).mul_f64(SILENCE));

    let session = until_renewed(&namespace, "kept", renewals + 1).await?;
    ensure!(session["status"]["revoked"].is_null(), "{session}");
    ensure!(lives.renew(&kept.id).await?.granted()?.token == kept.token);
    let lock = namespace.lock("kept").await?.unwrap_or_default();
    ensure!(lock["status"]["incidents"].is_null(), "{lock}");
    Ok(())
}

/// Our binary, with a full pipe without a reader as its standard output.
fn with_a_full_pipe(directory: &Path) -> Result<(String, PathBuf)> {
    let (pipe, script) = (directory.join("pipe"), directory.join("operator"));
    let made = Command::new("mkfifo").arg(&pipe).status()?;
    ensure!(made.success(), "mkfifo: {made}");
    // A pipe has room for just these.
    let text = format!(
        "#!/bin/sh\nexec 1<>'{}'\nhead -c 65536 /dev/zero\nexec '{BINARY}' \"$@\"\n",
        pipe.display()
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok((script.display().to_string(), pipe))
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_audit_log_stops_recording_and_nothing_else() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let directory = tempfile::tempdir()?;
    let (stuck, pipe) = with_a_full_pipe(directory.path())?;
    let operator = Operator::start(&stuck, &cluster.operator_pod("op-0").await?, &[]).await?;
    operator.until_active().await?;
    let namespace = cluster.namespace("unread").await?;
    for lock in ["first", "second"] {
        let dies = sidecar(&namespace.pod(lock).await?, SHORT).await?;
        dies.acquire(lock).await?.granted()?;
        until_renewed(&namespace, lock, 1).await?;
        dies.kill9()?;
        until_free(&namespace, lock).await?;
    }
    let (listed, events) = (["get", "events", "--output", "name"], "HolderExpired");
    let before = namespace.kubectl(&listed).await?.ok()?;
    ensure!(!before.contains("event"), "told before its line: {before}");

    let mut read = tokio::process::Command::new("cat")
        .arg(&pipe)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(read.stdout.take().context("a pipe")?).lines();
    let mut told = Vec::new();
    while told.len() < 2 {
        let line = tokio::time::timeout(LIMIT, lines.next_line()).await??;
        let line = line.context("the pipe ended")?;
        let line: Value = serde_json::from_str(line.trim_start_matches('\0'))?;
        told.push(line["lock"].as_str().unwrap_or_default().to_owned());
    }
    told.sort();
    ensure!(told == ["first", "second"], "{told:?}");
    until_described(&namespace, "first", events).await?;
    until_described(&namespace, "second", events).await?;
    operator.sigterm()?;
    let ended = operator.ended().await?;
    ensure!(ended.success(), "{ended}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn session_lost_to_compaction_is_reclaimed_after_its_ttl() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let operator = operator(&cluster).await?;
    let namespace = cluster.namespace("compacted").await?;
    let dies = sidecar(&namespace.pod("dies").await?, SHORT).await?;
    let lives = sidecar(&namespace.pod("lives").await?, 120).await?;
    dies.acquire("res").await?.granted()?;
    let kept = lives.acquire_for_long("kept").await?.granted()?;
    let dead = until_renewed(&namespace, "res", 1).await?;
    let dead = dead["metadata"]["name"].as_str().context("a name")?;

    // No event reports the end of this session.
    let control_plane = cluster.control_plane();
    control_plane.kill_api_server().await?;
    dies.kill9()?;
    let session = format!("locksessions/{}/{dead}", namespace.name);
    control_plane.remove_from_etcd(&session).await?;
    control_plane.compact_etcd().await?;
    control_plane.start_api_server().await?;

    let free = until_free(&namespace, "res").await?;
    let incident = &free["status"]["incidents"][0];
    let reason = incident["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("was missing"), "{incident}");
    ensure!(namespace.session(dead).await?.is_none());
    ensure!(operator.metric(WENT_BACK).await? < 0.5);
    ensure!(lives.renew(&kept.id).await?.granted()?.token == kept.token);
    let lock = namespace.lock("kept").await?.unwrap_or_default();
    ensure!(lock["status"]["incidents"].is_null(), "{lock}");
    Ok(())
}

/// A backup in which a pod holds `res` that is dead by now, and the largest token that was given
/// after it.
async fn backup(namespace: &crate::harness::Namespace) -> Result<(PathBuf, u64)> {
    let holder = sidecar(&namespace.pod("holder").await?, SHORT).await?;
    let busy = sidecar(&namespace.pod("busy").await?, 120).await?;
    let held = holder.acquire("res").await?.granted()?;
    let control_plane = namespace.cluster.control_plane();
    let snapshot = control_plane.snapshot_etcd("before").await?;
    holder.release_for_good(&held.id).await?;
    let mut last = 0;
    for _ in 0..50 {
        last = token(&busy, "res").await?;
    }
    holder.kill9()?;
    Ok((snapshot, last))
}

/// Takes and releases a lock; gives the token.
async fn token(sidecar: &Sidecar, resource: &str) -> Result<u64> {
    let lease = sidecar.acquire(resource).await?.granted()?;
    sidecar.release_for_good(&lease.id).await?;
    Ok(lease.token)
}

#[tokio::test(flavor = "multi_thread")]
async fn restore_with_the_bump_is_followed_by_larger_tokens() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let operator = operator(&cluster).await?;
    let namespace = cluster.namespace("bumped").await?;
    let (snapshot, last) = backup(&namespace).await?;
    // Earlier observations decide nothing, so there is time to queue.
    cluster
        .control_plane()
        .restore_etcd(&snapshot, Some(BUMP))
        .await?;
    let waits = sidecar(&namespace.pod("waits").await?, 60).await?;
    let waiting = waits.wait_for("res", 120).await?;
    let next = waiting.answer().await?.granted()?;
    ensure!(next.token > last, "{next:?} after {last}");
    ensure!(operator.metric(WENT_BACK).await? < 0.5);
    let lock = namespace.lock("res").await?.unwrap_or_default();
    ensure!(lock["status"]["incidents"][0]["actor"] == "op-0", "{lock}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_writes_nothing_while_the_store_is_behind() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let operator = operator(&cluster).await?;
    let namespace = cluster.namespace("back").await?;
    let (snapshot, last) = backup(&namespace).await?;
    let control_plane = cluster.control_plane();
    let before = control_plane.served()?.len();
    control_plane.restore_etcd(&snapshot, None).await?;
    until_metric(&operator, WENT_BACK, 1.0).await?;
    ensure!(operator.admin("/readyz").await?.0 == 200);
    let said = operator.log().matches("store older than observed").count();
    ensure!(said == 1, "said {said} times");

    // It asks every 10 s; the holder's silence would have lasted long enough by then.
    let asked = || -> Result<usize> {
        let came = control_plane.served()?.split_off(before);
        let asks = |one: &&Served| {
            let everywhere = one.uri.contains("/v1alpha1/distributedlocks?");
            one.pod_uid == operator.pod.uid && everywhere && one.uri.ends_with("limit=1")
        };
        Ok(came.iter().filter(asks).count())
    };
    let known = asked()?;
    eventually("two more questions", 2 * LIMIT, async || {
        asked().ok().filter(|count| *count >= known + 2)
    })
    .await?;
    let session = namespace.holding_session("res").await?;
    let session = session.context("the dead holder's session")?;
    ensure!(session["status"]["revoked"].is_null(), "{session}");

    control_plane.restore_etcd(&snapshot, Some(BUMP)).await?;
    until_metric(&operator, WENT_BACK, 0.0).await?;
    let free = until_free(&namespace, "res").await?;
    ensure!(free["status"]["incidents"][0]["actor"] == "op-0", "{free}");
    let fresh = sidecar(&namespace.pod("fresh").await?, 60).await?;
    let next = token(&fresh, "res").await?;
    ensure!(next > last, "{next} after {last}");
    Ok(())
}
