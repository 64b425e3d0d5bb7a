//! A Job ends as its app does. The sidecar neither delays the Job nor changes its outcome.

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::Value;

use crate::app::{Wanted, asking_pod};
use crate::harness::Namespace;
use crate::install::Leasehold;

/// Exits with 9 if it does not get the lock.
const TAKE: &str = r#"answer=$(call /v1/locks/acquire '{"resource":"close","ttlSeconds":60,"waitSeconds":60}')
echo "$answer"
case "$answer" in *'"acquired":true'*) ;; *) exit 9 ;; esac
id=$(echo "$answer" | sed 's/.*"leaseId":"\([^"]*\)".*/\1/')
"#;
const RELEASE: &str = "curl --silent --request DELETE \"$LEASEHOLD_URL/v1/locks/$id\"\n";

#[tokio::test]
async fn a_job_with_a_lock_completes_and_another_fails() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("jobs").await?;
    let releases = format!("{TAKE}{RELEASE}exit 0");
    let (good, bad) = (format!("{TAKE}exit 0"), format!("{TAKE}exit 3"));
    for (name, script) in [("releases", &releases), ("good", &good), ("bad", &bad)] {
        let pod = asking_pod(name, script, &Wanted::default());
        namespace.start_job(name, &pod).await?;
    }
    for (name, code) in [("releases", 0), ("good", 0), ("bad", 3)] {
        namespace.until_job_ended(name, code).await?;
        stopped_without_delay(&namespace, name).await?;
    }
    let lock = namespace
        .until("dlock", "close", "free", |lock| {
            lock["status"]["lease"].is_null()
        })
        .await?;
    let token = &lock["status"]["token"];
    ensure!(token.as_u64() > Some(0), "never granted: {lock}");
    // An end without a release is recorded, a release is not.
    let incidents = lock["status"]["incidents"].as_array();
    let mut ended = Vec::new();
    for incident in incidents.into_iter().flatten() {
        ensure!(incident["kind"] == "PodEnded", "{}", lock["status"]);
        let pod = incident["pod"].as_str().context("it names the pod")?;
        ended.push(pod.split('-').next().unwrap_or_default().to_owned());
    }
    ended.sort_unstable();
    ensure!(ended == ["bad", "good"], "{}", lock["status"]);
    Ok(())
}

/// Asserts that the sidecar ended long before the validity returned to its app.
async fn stopped_without_delay(namespace: &Namespace, job: &str) -> Result<()> {
    let selector = format!("job={job}");
    let pods = ["get", "pods", "-l", &selector, "-o", "json"];
    let pods = namespace.kubectl(&pods).await?.json()?;
    let status = &pods["items"][0]["status"];
    let app = finished(&status["containerStatuses"], "app")?;
    let sidecar = finished(&status["initContainerStatuses"], "leasehold")?;
    ensure!(sidecar["exitCode"] == 0, "{status}");
    let at = |ended: &Value| -> Result<Timestamp> {
        let at = ended["finishedAt"].as_str().context("it ended at a time")?;
        Ok(at.parse()?)
    };
    let took = at(&sidecar)?.duration_since(at(&app)?);
    crate::tell(&format!(
        "measured: Job {job}: its sidecar ended {took:#} after its app, in whole seconds"
    ))?;
    ensure!(took.as_secs() < 5, "it took {took:#}");
    Ok(())
}

fn finished(statuses: &Value, container: &str) -> Result<Value> {
    let mut statuses = statuses.as_array().into_iter().flatten();
    let status = statuses.find(|status| status["name"] == container);
    let ended = status.map(|status| status["state"]["terminated"].clone());
    ended.with_context(|| format!("no {container} has ended: {statuses:?}"))
}
