//! The objects under examples/kubernetes, as kubectl and a namespace that is strict take them.

use anyhow::{Context, Result, ensure};
use leasehold::webhook::Decision;
use serde_json::{Value, json};

use crate::harness::{Cluster, TakeOver, read_file, repository};
use crate::injection::{make, namespace};
use crate::pods;

#[tokio::test(flavor = "multi_thread")]
async fn injected_examples_are_accepted_in_a_restricted_namespace() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let namespace = namespace(&cluster, "restricted").await?;
    let mut examples = 0;
    for file in std::fs::read_dir(repository("examples/kubernetes"))? {
        let file = file?.path();
        let path = file.display().to_string();
        let create = [
            "create",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            &path,
        ];
        let made = namespace.kubectl(&create).await?.ok()?;
        ensure!(made.contains("created (server dry run)"), "{made}");
        for object in read_file(&file)? {
            if let Some(pod) = first_pod(&object)? {
                let verdict = pods::decided(&pod);
                let is_injected = matches!(verdict.decision, Decision::Inject(_));
                ensure!(
                    is_injected && verdict.warnings.is_empty(),
                    "{path}: {verdict:?}"
                );
                let injected = pods::made(&pod).with_context(|| path.clone())?;
                make(&namespace, &injected)
                    .await
                    .with_context(|| path.clone())?;
                examples += 1;
            }
        }
    }
    ensure!(examples == 5, "{examples} examples");
    Ok(())
}

/// What the controller of a workload makes of its template.
fn first_pod(workload: &Value) -> Result<Option<Value>> {
    let owner = match workload["kind"].as_str() {
        Some("Deployment") => json!({"apiVersion": "apps/v1", "kind": "ReplicaSet"}),
        Some("Job" | "CronJob") => json!({"apiVersion": "batch/v1", "kind": "Job"}),
        _ => return Ok(None),
    };
    let spec = match workload["kind"].as_str() {
        Some("CronJob") => &workload["spec"]["jobTemplate"]["spec"],
        _ => &workload["spec"],
    };
    let mut pod = spec["template"].clone();
    let metadata = pod["metadata"]
        .as_object_mut()
        .context("a template's metadata")?;
    let mut owner = owner;
    owner["name"] = json!("owner");
    owner["uid"] = json!("00000000-0000-0000-0000-000000000000");
    owner["controller"] = json!(true);
    metadata.insert("generateName".to_owned(), json!("owner-"));
    metadata.insert("ownerReferences".to_owned(), json!([owner]));
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    Ok(Some(pod))
}
