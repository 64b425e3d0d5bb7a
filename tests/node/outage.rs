//! Five minutes without an API server: running pods are not affected, no lock is granted, and each
//! holder is notified in time that its lease is over. The test runs on a separate node (`all.sh`),
//! because it idles.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::app::{App, Log, Wanted, asking_pod};
use crate::handover::between;
use crate::harness::{Namespace, eventually};
use crate::install::Leasehold;
use crate::pods::{LIMIT, condition};

/// Longer than the time after which a node counts as lost, and than the validity of a cached check
/// of a sidecar's token.
const OUTAGE: Duration = Duration::from_secs(300);
/// The interval between the apps' requests.
const EVERY: Duration = Duration::from_secs(15);
/// How long a refusal may take: a client's timeout.
const PATIENCE: Duration = Duration::from_secs(30);
/// How late a loss may be notified on a busy machine, after the last returned deadline.
const LATE: Duration = Duration::from_secs(2);

/// The Service through which pods reach the API server.
const API_SERVER: &str = "10.0.0.1:443";

const HOLD: &str = "echo opened; call /v1/locks/hold '{\"resource\":\"held\"}'
exec sleep infinity";

#[tokio::test]
async fn five_minutes_outage_makes_no_pod_unready_or_restart() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let (machine, namespace) = (leasehold.machine, leasehold.namespace("outage").await?);
    // A real app's readiness may depend on its sidecar's.
    let probe = "curl --silent --fail $LEASEHOLD_URL/healthz";
    let wanted = Wanted {
        readiness: json!({"exec": {"command": ["sh", "-c", probe]},
            "periodSeconds": 2, "timeoutSeconds": 5}),
        ..Wanted::default()
    };
    let mut apps = Vec::new();
    for (name, script) in [("holder", HOLD), ("asker", "exec sleep infinity")] {
        apps.push(machine.app(&namespace, name, script, &wanted).await?);
    }
    let mut holds = apps[0].log()?;
    holds.until("event: acquired").await?;
    let leased = apps[1].acquire("leased").await?.with(200)?;

    let control_plane = machine.cluster.control_plane();
    machine.stop_controllers().await?;
    control_plane.stop_api_server().await?;
    let gone = Timestamp::now();
    let during = outlast(&apps[1], &leased, gone + OUTAGE).await;
    // Whatever the result, the following tests need the API server.
    control_plane.start_api_server().await?;
    let back = Timestamp::now();
    machine.start_controllers().await?;
    during?;
    notified_in_time(&mut holds, gone)?;

    until_given(&apps, &leased, back).await?;
    let began = Timestamp::now();
    until_a_new_pod_runs(&namespace).await?;
    crate::tell(&format!(
        "measured: a new pod runs {:?} after that",
        between(began, Timestamp::now())?
    ))?;
    for app in &mut apps {
        let before = vitals(&app.pod)?;
        app.look(&namespace).await?;
        let after = vitals(&app.pod)?;
        ensure!(before == after, "{before}\nbecame\n{after}");
    }
    operators_stayed(leasehold).await
}

/// Requests locks and reads the lease until then. Expects 503 in time, and no confirmation after
/// the lease is over.
async fn outlast(asker: &App, leased: &Value, end: Timestamp) -> Result<()> {
    let id = leased["leaseId"].as_str().context("a lease has an id")?;
    let (mut refusals, mut longest) = (0, Duration::ZERO);
    let mut is_lost = false;
    while Timestamp::now() < end {
        let began = Timestamp::now();
        let refused = asker.acquire("new").await?.with(503)?;
        let took = between(began, Timestamp::now())?;
        ensure!(took < PATIENCE, "it took {took:?}: {refused}");
        (refusals, longest) = (refusals + 1, longest.max(took));
        let lease = asker
            .ask("GET", &format!("/v1/locks/{id}"), &Value::Null)
            .await?;
        ensure!(!is_lost || lease.status == 410, "it came back: {lease:?}");
        is_lost = lease.status == 410;
        tokio::time::sleep(EVERY).await;
    }
    ensure!(is_lost, "a lease outlived {OUTAGE:?}");
    crate::tell(&format!(
        "measured: without an API server {refusals} acquires got 503, after {longest:?} at most"
    ))
}

/// The stream delivered `at-risk`, and `lost` after its last returned deadline.
fn notified_in_time(holds: &mut Log, gone: Timestamp) -> Result<()> {
    let (opened, _) = holds.find("opened")?.context("it must say so")?;
    let (risk, _) = holds.find("event: at-risk")?.context("no at-risk")?;
    let (lost, _) = holds.find("event: lost")?.context("no lost")?;
    let mut deadline = opened;
    for (_, line) in holds.lines()? {
        if let Some(data) = line.strip_prefix("data: ") {
            let data: Value = serde_json::from_str(data)?;
            if let Some(valid) = data["validForMs"].as_u64() {
                deadline = deadline.max(opened + Duration::from_millis(valid));
            }
        }
    }
    ensure!(
        gone < risk && risk < lost && risk < deadline,
        "{risk} {lost} {deadline}"
    );
    let late = if lost > deadline {
        between(deadline, lost)?
    } else {
        Duration::ZERO
    };
    crate::tell(&format!(
        "measured: API server gone: at-risk after {:?}, lost after {:?}, {late:?} behind the deadline",
        between(gone, risk)?,
        between(gone, lost)?
    ))?;
    ensure!(late < LATE, "notified {late:?} after the deadline");
    Ok(())
}

/// Waits until locks are granted again, a free one and the lost ones, as soon as pods reach the API
/// server. That depends on kube-proxy, which retries with increasing pauses, like all of
/// Kubernetes' own clients.
async fn until_given(apps: &[App], leased: &Value, back: Timestamp) -> Result<()> {
    eventually("pods to reach the API server", 5 * LIMIT, async || {
        let connected = tokio::net::TcpStream::connect(API_SERVER).await;
        connected.ok().map(drop)
    })
    .await?;
    let reached = Timestamp::now();
    let mut took = Vec::new();
    for (app, resource) in [
        (&apps[1], "fresh"),
        (&apps[1], "leased"),
        (&apps[0], "held"),
    ] {
        let what = format!("{resource}, after the outage");
        let lease = eventually(&what, LIMIT, async || {
            let answer = app.acquire(resource).await.ok()?;
            (answer.status == 200).then_some(answer.body)
        })
        .await?;
        let token = &lease["fencingToken"];
        let is_newer = token.as_u64() > leased["fencingToken"].as_u64();
        ensure!(resource != "leased" || is_newer, "{lease}, after {leased}");
        took.push(format!(
            "{resource} {:?}",
            between(reached, Timestamp::now())?
        ));
    }
    crate::tell(&format!(
        "measured: API server back after {OUTAGE:?}: pods reach it after {:?}, locks are given after another {}",
        between(back, reached)?,
        took.join(", ")
    ))
}

/// Waits until the kubelet, the scheduler and the controllers have caught up, too, and have
/// reported their state.
async fn until_a_new_pod_runs(namespace: &Namespace) -> Result<()> {
    let pod = asking_pod("new", "exec sleep infinity", &Wanted::default());
    namespace.apply(&pod).await?;
    eventually("a new pod to run", 4 * LIMIT, async || {
        let pod = namespace.get("pod", "new").await.ok()?;
        condition(&pod, "Ready").then_some(())
    })
    .await
}

/// Returns the fields that change when a container restarts, or when the pod is not ready for a
/// moment.
fn vitals(pod: &Value) -> Result<Value> {
    let status = &pod["status"];
    let conditions = status["conditions"].as_array().context("no conditions")?;
    let ready = conditions.iter().find(|one| one["type"] == "Ready");
    let ready = ready.context("no condition Ready")?;
    let mut containers = Vec::new();
    for list in ["initContainerStatuses", "containerStatuses"] {
        for one in status[list].as_array().into_iter().flatten() {
            containers.push(json!([
                one["name"],
                one["restartCount"],
                one["containerID"]
            ]));
        }
    }
    ensure!(containers.len() == 2, "{status}");
    Ok(json!([
        ready["status"],
        ready["lastTransitionTime"],
        containers
    ]))
}

/// Without an API server the operator can do nothing, but that is not a reason to restart it.
async fn operators_stayed(leasehold: &Leasehold) -> Result<()> {
    for operator in leasehold.operators().await? {
        let status = &operator["status"]["containerStatuses"][0];
        ensure!(status["restartCount"] == 0, "{status}");
    }
    Ok(())
}
