//! Locks of ended pods are free before their sessions expire; pods that only look ended keep theirs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{LIMIT, with_operator};
use crate::harness::{Namespace, Sidecar, eventually, now};
use crate::support::{sidecar, until_free, until_renewed};

/// A silent session does not expire for a long time here.
const TTL_SECONDS: u64 = 60;

fn terminated(reason: &str) -> Value {
    json!([{"name": "app", "image": "app", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 137, "reason": reason}}}])
}

/// What a kubelet reports of a pod that ended.
fn ended() -> Value {
    json!({"phase": "Failed", "containerStatuses": terminated("Error")})
}

fn api(namespace: &Namespace) -> Api<PodObject> {
    Api::namespaced(namespace.client.clone(), &namespace.name)
}

async fn report(namespace: &Namespace, pod: &str, status: &Value) -> Result<()> {
    let patch = Patch::Merge(json!({"status": status}));
    let params = PatchParams::default();
    api(namespace).patch_status(pod, &params, &patch).await?;
    Ok(())
}

async fn holding(namespace: &Namespace, pod: &str) -> Result<Sidecar> {
    let sidecar = sidecar(&namespace.pod(pod).await?, TTL_SECONDS).await?;
    sidecar.acquire(pod).await?.granted()?;
    Ok(sidecar)
}

/// Waits until the lock named after a pod is free; gives its incident.
async fn incident_of(namespace: &Namespace, lock: &str) -> Result<Value> {
    let free = until_free(namespace, lock).await?;
    Ok(free["status"]["incidents"][0].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_locks_of_really_ended_pods_are_freed_at_once() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("ended").await?;
    let lost = json!({"phase": "Failed", "reason": "NodeLost",
        "containerStatuses": terminated("ContainerStatusUnknown")});
    let mut collected = ended();
    collected["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
        "reason": "DeletionByPodGC"}]);
    let mut restarting = ended();
    restarting["phase"] = json!("Running");
    let silent = json!({"phase": "Failed"});
    let look_alikes = [
        ("lost", Some(lost)),
        ("collected", Some(collected)),
        ("restarting", Some(restarting)),
        ("unreported", Some(silent)),
        ("gone", None),
    ];
    let mut alive = Vec::new();
    for (pod, status) in &look_alikes {
        alive.push(holding(&namespace, pod).await?);
        if let Some(status) = status {
            report(&namespace, pod, status).await?;
        } else {
            let at_once = DeleteParams::default().grace_period(0);
            api(&namespace).delete(pod, &at_once).await?;
        }
    }
    let really = holding(&namespace, "really").await?;
    let reported = now();
    report(&namespace, "really", &ended()).await?;
    let incident = incident_of(&namespace, "really").await?;
    println!(
        "measured: free {:?} after the pod was reported as ended",
        now().since(reported)
    );
    ensure!(incident["kind"] == "PodEnded", "{incident}");
    ensure!(incident["actor"] == "operator-of-many", "{incident}");
    // The report was wrong: the process runs. It pauses between sessions, each of which would be revoked at once. An
    // acquire under way when the session ended fails with that reason.
    eventually("no other session to be begun", LIMIT, async || {
        let answer = really.acquire("again").await.ok()?;
        let said = answer.json["detail"].as_str()?;
        (answer.code() == "session_lost" && said.contains("reported as ended")).then_some(())
    })
    .await?;
    let again = really.acquire("again").await?;
    again.problem(503, "session_lost")?;
    let sessions = namespace.all("locksessions").await?;
    let ours = |session: &&Value| session["spec"]["pod"] == "really";
    ensure!(sessions.iter().filter(ours).count() == 1, "{sessions:?}");

    // Reported before, and seen in the order in which they were.
    for (pod, _) in &look_alikes {
        let lock = namespace.lock(pod).await?.context("the lock")?;
        ensure!(lock["status"]["holder"]["pod"] == *pod, "{pod}: {lock}");
        let session = namespace.holding_session(pod).await?.context("a session")?;
        ensure!(
            session["status"].get("revoked").is_none(),
            "{pod}: {session}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn terminating_pod_is_read_after_a_missed_renewal() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("deleted").await?;
    let pod = namespace.pod("a").await?;
    // Its phase has not changed yet, so no feed reports it.
    let keep = json!({"metadata": {"finalizers": ["example.com/keep"]}});
    let params = PatchParams::default();
    api(&namespace)
        .patch("a", &params, &Patch::Merge(keep))
        .await?;
    let holder = sidecar(&pod, 10).await?;
    holder.acquire("a").await?.granted()?;
    until_renewed(&namespace, "a", 1).await?;
    api(&namespace)
        .delete("a", &DeleteParams::default())
        .await?;
    let status = json!({"phase": "Running", "containerStatuses": terminated("Error")});
    report(&namespace, "a", &status).await?;
    holder.freeze()?;
    let frozen = now();
    let incident = incident_of(&namespace, "a").await?;
    println!(
        "measured: reclaimed {:?} after it fell silent",
        now().since(frozen)
    );
    ensure!(incident["kind"] == "PodEnded", "{incident}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn session_without_a_pod_uid_is_judged_by_its_silence_alone() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("nobody").await?;
    let session = json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "LockSession",
        "metadata": {"name": "nobody"},
        "spec": {"pod": "a", "podUid": "", "ttlSeconds": 5, "agentVersion": "?"}});
    namespace.create(&session).await?;
    namespace.pod("a").await?;
    report(&namespace, "a", &ended()).await?;
    let revoked = eventually("it to be revoked", Duration::from_secs(30), async || {
        let session = namespace.session("nobody").await.ok().flatten()?;
        session["status"].get("revoked").cloned()
    });
    ensure!(revoked.await?["reason"] == "Expired");
    Ok(())
}
