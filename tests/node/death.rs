//! Containers that are killed: a single one, one with a hold, and all containers of a pod.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::app::{Log, Wanted};
use crate::handover::between;
use crate::harness::{Namespace, eventually};
use crate::install::Leasehold;
use crate::pods::LIMIT;

const HOLD: &str = "call /v1/locks/hold '{\"resource\":\"orders\"}'
exec sleep infinity";

/// Starts a pod that waits for the lock `orders` by a hold. Returns its log once it is queued.
async fn waiter(leasehold: &'static Leasehold, namespace: &Namespace) -> Result<Log> {
    let wanted = Wanted::default();
    let b = leasehold.machine.app(namespace, "b", HOLD, &wanted).await?;
    let log = b.log()?;
    namespace.until_queued("orders").await?;
    Ok(log)
}

/// Here curl is the container's only process, so the stream ends with the container. The hand-over
/// takes some 10 ms, and longer if the two cores are busy for a moment. So the median of five runs
/// counts.
#[tokio::test]
async fn killed_container_with_a_hold_hands_over_at_once() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let mut took = Vec::new();
    for _ in 0..5 {
        took.push(killed_with_a_hold(leasehold).await?);
    }
    took.sort();
    crate::tell(&format!(
        "measured: killed with a hold: handed over after {took:?}"
    ))?;
    ensure!(took[2] < Duration::from_millis(100), "it took {took:?}");
    Ok(())
}

/// Returns the time from the kill until the next waiter receives the lock.
async fn killed_with_a_hold(leasehold: &'static Leasehold) -> Result<Duration> {
    let namespace = leasehold.namespace("death").await?;
    let script = "exec curl --silent --no-buffer $LEASEHOLD_URL/v1/locks/hold \
        -H 'content-type: application/json' -d '{\"resource\":\"orders\"}'";
    let wanted = Wanted::default();
    let a = leasehold
        .machine
        .app(&namespace, "a", script, &wanted)
        .await?;
    a.log()?.until("event: acquired").await?;
    let mut waits = waiter(leasehold, &namespace).await?;

    let killed = a.signal("app", Signal::KILL)?;
    let (got, _) = waits.until("event: acquired").await?;
    between(killed, got)
}

#[tokio::test]
async fn killed_sidecar_resumes_its_leases() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("death").await?;
    let wanted = Wanted::default();
    let mut a = leasehold
        .machine
        .app(&namespace, "a", "exec sleep infinity", &wanted)
        .await?;
    let lease = a.acquire("orders").await?.with(200)?;
    let before = namespace
        .lock("orders")
        .await?
        .context("the lock must be there")?;

    let killed = a.signal("leasehold", Signal::KILL)?;
    let id = lease["leaseId"]
        .as_str()
        .context("a lease must have an id")?;
    let renew = format!("/v1/locks/{id}/renew");
    eventually("the lease to be renewed", LIMIT, async || {
        let answer = a
            .ask("POST", &renew, &json!({"ttlSeconds": 60}))
            .await
            .ok()?;
        (answer.status == 200).then_some(())
    })
    .await?;
    let took = between(killed, Timestamp::now())?;
    crate::tell(&format!(
        "measured: sidecar killed: the lease was renewed after {took:?}"
    ))?;
    a.look(&namespace).await?;
    ensure!(
        restarts(&a.pod, "leasehold") == Some(1),
        "{}",
        a.pod["status"]
    );
    ensure!(restarts(&a.pod, "app") == Some(0), "{}", a.pod["status"]);
    let after = namespace
        .lock("orders")
        .await?
        .context("the lock must be there")?;
    ensure!(
        before["status"]["lease"] == after["status"]["lease"],
        "{before} became {after}"
    );
    ensure!(
        before["status"]["token"] == after["status"]["token"],
        "{before} became {after}"
    );
    Ok(())
}

/// Like a node that kills for memory. The kubelet observes the pod's end, and then the operator
/// does.
#[tokio::test]
async fn killed_pods_lock_is_reclaimed_after_its_end_is_reported() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("death").await?;
    let wanted = Wanted {
        // The session's TTL does not delay this.
        config: vec![("session-ttl", "3600")],
        spec: json!({"restartPolicy": "Never"}),
        ..Wanted::default()
    };
    let a = leasehold
        .machine
        .app(&namespace, "a", "exec sleep infinity", &wanted)
        .await?;
    a.acquire("orders").await?.with(200)?;
    let mut waits = waiter(leasehold, &namespace).await?;

    // The sidecar first, and both before the kubelet can restart it.
    let (sidecar, app) = (a.process("leasehold")?, a.process("app")?);
    let killed = Timestamp::now();
    kill_process(sidecar, Signal::KILL)?;
    kill_process(app, Signal::KILL)?;
    let path = format!("/api/v1/namespaces/{}/pods/a", namespace.name);
    eventually("the report that the pod has ended", LIMIT, async || {
        let request = http::Request::get(&path).body(vec![]).ok()?;
        let pod: Value = namespace.client.request(request).await.ok()?;
        (pod["status"]["phase"] == "Failed").then_some(())
    })
    .await?;
    let reported = Timestamp::now();
    let (got, _) = waits.until("event: acquired").await?;
    let after_report = got.duration_since(reported);
    crate::tell(&format!(
        "measured: pod killed: taken over {:?} after the kill, {after_report:#} after the report",
        between(killed, got)?
    ))?;
    ensure!(after_report.as_secs_f64() < 2.0, "it took {after_report:#}");
    // No process released it: the operator reclaimed it from a pod that was reported as ended.
    let lock = namespace
        .lock("orders")
        .await?
        .context("the lock must be there")?;
    let kinds = lock["status"]["incidents"].as_array();
    let kinds: Vec<_> = kinds.into_iter().flatten().map(|i| &i["kind"]).collect();
    ensure!(kinds == ["PodEnded"], "{lock}");
    Ok(())
}

fn restarts(pod: &Value, container: &str) -> Option<u64> {
    let lists = ["containerStatuses", "initContainerStatuses"];
    let all = lists
        .iter()
        .filter_map(|list| pod["status"][list].as_array())
        .flatten();
    let mut ours = all.filter(|status| status["name"] == container);
    ours.next()?["restartCount"].as_u64()
}
