//! Execs without a sidecar: each has an agent of its own, as the user that its credentials name.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::fencing::Writers;
use super::{LOCK, runs_until};
use crate::harness::{
    Cluster, Exec, Kubeconfig, Namespace, PATIENCE, Sidecar, TakeOver, eventually, own_file, signal,
};
use crate::support::{BINARY, until_free, until_queued};

/// The exit code for a held lock.
const HELD: i32 = 200;
/// The exit code for a lost lease.
const LOST: i32 = 201;
const TTL: Duration = Duration::from_secs(5);
const PRINTS: &str = r#"echo "token $LEASEHOLD_TOKEN""#;

/// Starts an exec of the pod of a sidecar that is not used.
fn alone(unused: &Sidecar, flags: &[&str], script: &str) -> Result<Exec> {
    let ttl = TTL.as_secs().to_string();
    let flags = [&["--lock", LOCK, "--session-ttl", &ttl], flags].concat();
    Exec::alone(BINARY, &unused.pod.kubeconfig, &flags, script)
}

/// Waits until no session of the namespace can hold a lock.
async fn until_no_session(namespace: &Namespace) -> Result<()> {
    eventually("all sessions to end", PATIENCE, async || {
        let sessions = namespace.all("locksessions").await.ok()?;
        let is_over = |session: &Value| !session["status"]["revoked"].is_null();
        sessions.iter().all(is_over).then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_acts_for_the_pod_or_the_user_of_its_credentials() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("exec-alone").await?;
    let pod = namespace.pod("report-x7").await?;
    let done = own_file("done")?;
    let flags = ["--lock", LOCK];
    let first = Exec::alone(BINARY, &pod.kubeconfig, &flags, &runs_until(&done))?;
    let token: u64 = first.until_printed("token").await?.parse()?;
    let session = namespace
        .holding_session(LOCK)
        .await?
        .context("a session")?;
    ensure!(session["spec"]["pod"] == *pod.name, "{session}");
    ensure!(session["spec"]["podUid"] == *pod.uid, "{session}");
    let owner = &session["metadata"]["ownerReferences"][0];
    ensure!(owner["uid"] == *pod.uid, "{session}");
    let log = first.log();
    ensure!(log.contains("using the API server"), "{log}");

    let admin = cluster.control_plane().admin();
    let by_hand = |more: &[&str], script: &str| {
        let flags = ["--lock", LOCK, "--namespace", &namespace.name];
        Exec::alone(BINARY, admin, &[&flags, more].concat(), script)
    };
    let fails = by_hand(&["--if-held", "fail"], PRINTS)?;
    fails.ends_with(HELD).await?;
    ensure!(fails.log().contains(&pod.name), "{}", fails.log());
    let done_by_hand = own_file("done")?;
    let second = by_hand(&["--owner", "anna"], &runs_until(&done_by_hand))?;
    until_queued(&namespace, LOCK, 1).await?;
    std::fs::write(done, "")?;
    first.ends_with(0).await?;
    let next: u64 = second.until_printed("token").await?.parse()?;
    ensure!(next > token, "{next} after {token}");
    let session = namespace
        .holding_session(LOCK)
        .await?
        .context("a session")?;
    ensure!(session["spec"]["podUid"] == "", "{session}");
    ensure!(
        session["metadata"]["ownerReferences"].is_null(),
        "{session}"
    );
    std::fs::write(done_by_hand, "")?;
    second.ends_with(0).await?;
    until_free(&namespace, LOCK).await?;
    until_no_session(&namespace).await
}

#[tokio::test(flavor = "multi_thread")]
async fn command_without_a_sidecar_ends_with_a_killed_front() -> Result<()> {
    let writers = Writers::start_with("exec-alone-front", TTL, alone, 1).await?;
    writers.kill("front", writers.pids.front).await
}

#[tokio::test(flavor = "multi_thread")]
async fn command_without_a_sidecar_ends_with_a_killed_keeper() -> Result<()> {
    let writers = Writers::start_with("exec-alone-keeper", TTL, alone, 1).await?;
    writers.kill("keeper", writers.pids.keeper).await?;
    writers.first.ends_with(LOST).await
}

/// The session expires, as after the end of a node.
#[tokio::test(flavor = "multi_thread")]
async fn command_ends_before_the_session_of_a_killed_agent() -> Result<()> {
    let writers = Writers::start_with("exec-agent", TTL, alone, 1).await?;
    let agent = writers.pids.agent.context("an agent")?;
    writers.kill("agent", agent).await?;
    writers.first.ends_with(LOST).await
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_to_all_processes_of_exec_releases_the_lock() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("exec-all").await?;
    let pod = namespace.pod("a").await?;
    let exec = Exec::alone(BINARY, &pod.kubeconfig, &["--lock", LOCK], "sleep 600")?;
    let pids = exec.pids().await?;
    // As systemd stops a service.
    let all = [
        pids.front,
        pids.keeper,
        pids.agent.context("an agent")?,
        pids.command,
    ];
    for pid in all {
        signal(pid, Signal::TERM)?;
    }
    exec.ends_with(128 + 15).await?;
    until_free(&namespace, LOCK).await?;
    until_no_session(&namespace).await
}

/// Nothing of the lease is used up before the agent can renew it.
#[tokio::test(flavor = "multi_thread")]
async fn slow_credential_plugin_costs_no_validity() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("exec-plugin").await?;
    let pod = namespace.pod("a").await?;
    let mut file: Value = serde_json::from_slice(&std::fs::read(&pod.kubeconfig.path)?)?;
    let credential = json!({"apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential", "status": {"token": pod.token}});
    file["users"][0]["user"] = json!({"exec": {"command": "sh", "interactiveMode": "Never",
        "apiVersion": "client.authentication.k8s.io/v1",
        "args": ["-c", format!("sleep 1.5; echo '{credential}'")]}});
    let path = pod.kubeconfig.path.with_extension("plugin");
    std::fs::write(&path, file.to_string())?;
    let user = Kubeconfig {
        path,
        ..pod.kubeconfig.clone()
    };
    let ttl = TTL.as_secs().to_string();
    let flags = ["--lock", LOCK, "--session-ttl", &ttl];
    let exec = Exec::alone(BINARY, &user, &flags, "sleep 8; echo token now")?;
    exec.ends_with(0).await?;
    ensure!(exec.printed("token").is_some(), "{}", exec.log());
    until_free(&namespace, LOCK).await.map(drop)
}
