//! Jobs whose pods have no sidecar: a command runs once for each key, although a pod is deleted in mid-run, and
//! its Job is Complete soon after it.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::harness::{Namespace, eventually};
use crate::install::Leasehold;
use crate::machine::Machine;
use crate::parts::IMAGE;
use crate::pods::{LIMIT, app, condition, restricted};

/// Says when it begins and ends. It ends only in a pod that starts after [`END`] was created.
const SCRIPT: &str = r#"echo begun; [ "$END" ] || sleep infinity; echo succeeded"#;
/// The `ConfigMap` that lets the script end.
const END: &str = "end";
/// The same, for measurements.
const SHORT: &str = "sleep 1; echo succeeded";
const EXEC: [&str; 4] = ["/leasehold/leasehold", "exec", "--lock", "report"];
/// How many pairs of Jobs are measured.
const PAIRS: usize = 5;

/// Returns the template of a pod that runs a script, by a wrapper or none. Each has the binary.
fn template(wrapper: &[&str], script: &str) -> Value {
    let volume = |path: &str| json!([{"name": "leasehold", "mountPath": path}]);
    let mut report = app("");
    report["command"] = json!([wrapper, &["sh", "-c", script]].concat());
    report["volumeMounts"] = volume("/leasehold");
    report["env"] = json!([{"name": "END", "valueFrom": {"configMapKeyRef":
        {"name": END, "key": "end", "optional": true}}}]);
    let copy = json!({"name": "copy", "image": IMAGE, "imagePullPolicy": "Never",
        "args": ["copy", "/copy"], "volumeMounts": volume("/copy"), "securityContext": restricted()});
    json!({"spec": {"restartPolicy": "Never", "initContainers": [copy], "containers": [report],
        "volumes": [{"name": "leasehold", "emptyDir": {}}]}})
}

/// Returns a `CronJob` that is not due during the test.
fn cron_job() -> Value {
    let once = [&EXEC[..], &["--once", "2026-04-01", "--"]].concat();
    json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "report"},
        "spec": {"schedule": "0 3 1 1 *",
            "jobTemplate": {"spec": {"template": template(&once, SCRIPT)}}}})
}

/// Returns the pods of Jobs.
async fn pods(namespace: &Namespace, jobs: &str) -> Result<Vec<Value>> {
    let of_jobs = format!("job-name in ({jobs})");
    let get = ["get", "pods", "-l", &of_jobs, "-o", "json"];
    let pods = namespace.kubectl(&get).await?.json()?;
    let pods = pods["items"].as_array().context("a list of pods")?;
    Ok(pods.clone())
}

/// Waits until a Job is Complete, and returns when that was seen.
async fn completed(namespace: &Namespace, job: &str) -> Result<Timestamp> {
    let complete = namespace.until("job", job, "Complete", |job| condition(job, "Complete"));
    complete.await?;
    Ok(Timestamp::now())
}

/// Returns the time of the line in a container's log that contains a text.
fn time_of(log: &str, text: &str) -> Option<Timestamp> {
    let line = log.lines().find(|line| line.contains(text))?;
    line.split(' ').next()?.parse().ok()
}

async fn start(namespace: &Namespace, job: &str) -> Result<()> {
    let create = ["create", "job", "--from=cronjob/report", job];
    namespace.kubectl(&create).await?.ok()?;
    Ok(())
}

/// Runs a script in a Job. Returns how long after the script the Job was Complete.
async fn latency(
    namespace: &Namespace,
    machine: &Machine,
    job: &str,
    wrapper: &[&str],
) -> Result<SignedDuration> {
    let manifest = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job},
        "spec": {"template": template(wrapper, SHORT)}});
    namespace.apply(&manifest).await?;
    let ended = completed(namespace, job).await?;
    let pods = pods(namespace, job).await?;
    let said = machine.said(pods.first().context("a pod")?, "app")?;
    let succeeded = time_of(&said, "succeeded").context("a success")?;
    Ok(ended.duration_since(succeeded))
}

fn median(mut times: Vec<SignedDuration>) -> SignedDuration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test]
async fn cron_job_runs_once_per_key_although_its_pod_is_deleted() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let (machine, namespace) = (leasehold.machine, leasehold.namespace("once").await?);
    namespace.apply(&cron_job()).await?;
    start(&namespace, "first").await?;
    let deleted = eventually("a pod whose command has begun", LIMIT, async || {
        let pod = pods(&namespace, "first").await.ok()?.into_iter().next()?;
        let said = machine.said(&pod, "app").ok()?;
        said.contains("begun").then_some(pod)
    });
    let deleted = deleted.await?;
    let end = ["create", "configmap", END, "--from-literal", "end=yes"];
    namespace.kubectl(&end).await?.ok()?;
    start(&namespace, "second").await?;
    let name = deleted["metadata"]["name"].as_str().context("a name")?;
    let delete = ["delete", "pod", name, "--wait=false"];
    namespace.kubectl(&delete).await?.ok()?;

    completed(&namespace, "first").await?;
    completed(&namespace, "second").await?;
    let mut successes = 0;
    for pod in pods(&namespace, "first, second").await? {
        let said = machine.said(&pod, "app")?;
        let knows = said.contains("already completed") || said.contains("completion recorded");
        ensure!(knows, "{said}");
        successes += usize::from(said.contains("succeeded"));
    }
    ensure!(successes == 1, "{successes} successes");
    Ok(())
}

/// Kubernetes takes its own time, so a Job with exec is measured beside one without.
#[tokio::test]
async fn job_is_complete_soon_after_its_command() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let (machine, namespace) = (leasehold.machine, leasehold.namespace("soon").await?);
    let exec = [&EXEC[..], &["--"]].concat();
    let (mut with, mut without) = (vec![], vec![]);
    for pair in 0..PAIRS {
        let (locked, plain) = (format!("locked-{pair}"), format!("plain-{pair}"));
        let (locked, plain) = tokio::try_join!(
            latency(&namespace, machine, &locked, &exec),
            latency(&namespace, machine, &plain, &[])
        )?;
        with.push(locked);
        without.push(plain);
    }
    crate::tell(&format!(
        "measured: a Job was Complete {:#} after its command with exec, and {:#} without (medians of {PAIRS})",
        median(with),
        median(without)
    ))
}
