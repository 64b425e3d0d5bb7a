//! Pods whose app does not run or serve: they do not acquire a lead, or lose it to a pod whose app
//! does.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::app::{Wanted, asking_pod};
use crate::harness::{Namespace, eventually};
use crate::install::Leasehold;
use crate::pods::LIMIT;

/// Queries until its pod leads, then exits as in a crash.
const LEADS_AND_CRASHES: &str = r#"while sleep 0.1; do
  case $(curl --silent "$LEASEHOLD_URL/v1/elections/billing") in *'"leader":true'*) exit 1 ;; esac
done"#;
/// Queries like an app that acts on the answers.
const ASKS: &str = r#"trap 'exit 0' TERM
while sleep 0.5; do curl --silent "$LEASEHOLD_URL/v1/elections/billing"; echo; done"#;

/// Waits until the app's container waits for this reason.
async fn until_app(namespace: &Namespace, pod: &str, reason: &str) -> Result<()> {
    eventually(&format!("{pod} to be {reason}"), LIMIT, async || {
        let pod = namespace.get("pod", pod).await.ok()?;
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        (waiting["reason"] == reason).then_some(())
    })
    .await
}

/// Returns the status of the namespace's only lock, which is the election's, or null.
async fn status(namespace: &Namespace) -> Result<Value> {
    let locks = namespace.all("distributedlocks").await?;
    let lock = locks.first();
    Ok(lock.map_or(Value::Null, |lock| lock["status"].clone()))
}

async fn until_leads(namespace: &Namespace, pod: &str) -> Result<Value> {
    eventually(&format!("{pod} to lead"), LIMIT, async || {
        let status = status(namespace).await.ok()?;
        (status["holder"]["pod"] == pod).then_some(status)
    })
    .await
}

#[tokio::test]
async fn a_pod_whose_app_does_not_run_does_not_lead() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("no-app").await?;
    // It releases a lead after six seconds without a query; the first restart takes ten.
    let config = vec![("elect", "billing"), ("session-ttl", "3")];
    let wanted = |readiness: Value| Wanted {
        config: config.clone(),
        readiness,
        ..Wanted::default()
    };
    let mut pulls = asking_pod("pulls", ASKS, &wanted(Value::Null));
    pulls["spec"]["containers"][0]["image"] = json!("registry.example/no-such-image:1");
    namespace.apply(&pulls).await?;
    until_app(&namespace, "pulls", "ErrImageNeverPull").await?;

    let crashes = asking_pod("crashes", LEADS_AND_CRASHES, &wanted(Value::Null));
    namespace.apply(&crashes).await?;
    let first = until_leads(&namespace, "crashes").await?;
    // A pod that is not ready can lead, because its app queries.
    let never = json!({"exec": {"command": ["false"]}, "periodSeconds": 1});
    namespace
        .apply(&asking_pod("asks", ASKS, &wanted(never)))
        .await?;
    let second = until_leads(&namespace, "asks").await?;
    ensure!(
        second["token"].as_u64() > first["token"].as_u64(),
        "{second} after {first}"
    );
    ensure!(
        second["incidents"].is_null(),
        "released, not taken over: {second}"
    );
    // Its app restarts repeatedly, queries, and is queued.
    eventually("crashes to be queued", LIMIT, async || {
        let status = status(&namespace).await.ok()?;
        let waiters = status["waiters"].as_array()?.iter();
        let pods = waiters.map(|waiter| waiter["pod"].clone());
        let pods: Vec<Value> = pods.collect();
        (pods == [json!("crashes")]).then_some(())
    })
    .await?;
    ensure!(status(&namespace).await?["holder"]["pod"] == "asks");
    Ok(())
}

#[tokio::test]
async fn the_operator_moves_a_lead_to_a_pod_that_is_ready() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("not-ready").await?;
    let candidate = |name: &str, ready: &str| {
        let wanted = Wanted {
            config: vec![("elect-always", "web"), ("session-ttl", "3")],
            readiness: json!({"exec": {"command": [ready]}, "periodSeconds": 1}),
            ..Wanted::default()
        };
        asking_pod(
            name,
            "trap 'exit 0' TERM\nwhile sleep 1; do :; done",
            &wanted,
        )
    };
    let mut pulls = candidate("pulls", "true");
    pulls["spec"]["containers"][0]["image"] = json!("registry.example/no-such-image:1");
    namespace.apply(&pulls).await?;
    until_leads(&namespace, "pulls").await?;
    namespace.apply(&candidate("unready", "false")).await?;
    eventually("unready to be queued", LIMIT, async || {
        let status = status(&namespace).await.ok()?;
        (status["waiters"][0]["pod"] == "unready").then_some(())
    })
    .await?;
    // Now another pod can lead. It is the last one in the queue.
    namespace.apply(&candidate("serves", "true")).await?;
    let status = until_leads(&namespace, "serves").await?;
    let incidents = status["incidents"].as_array().into_iter().flatten();
    let ended: Vec<_> = incidents
        .map(|incident| (&incident["pod"], &incident["kind"], &incident["actor"]))
        .collect();
    let kind = json!("ReleasedOnRequest");
    let actor = json!("system:serviceaccount:leasehold-system:leasehold-operator");
    let by_request = |pod| (pod, &kind, &actor);
    let pods = [json!("pulls"), json!("unready")];
    ensure!(ended == pods.each_ref().map(by_request), "{status}");
    eventually("the label of the leader", LIMIT, async || {
        let pod = namespace.get("pod", "serves").await.ok()?;
        let label = &pod["metadata"]["labels"]["leasehold.dev/leader-web"];
        (*label == "true").then_some(())
    })
    .await?;
    Ok(())
}
