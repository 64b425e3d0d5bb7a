//! Jobs end as their apps do; the sidecar neither keeps them nor changes their outcome.

use anyhow::{Result, ensure};
use serde_json::json;

use crate::app::{Wanted, asking_pod};
use crate::install::Leasehold;
use crate::pods::condition;

const TAKE: &str =
    "call /v1/locks/acquire '{\"resource\":\"close\",\"ttlSeconds\":60,\"waitSeconds\":60}'\n";

#[tokio::test]
async fn a_job_with_a_lock_completes_and_another_fails() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("jobs").await?;
    let wanted = Wanted {
        spec: json!({"restartPolicy": "Never"}),
        ..Wanted::default()
    };
    for (name, end) in [("good", "exit 0"), ("bad", "exit 3")] {
        let mut template = asking_pod(name, &format!("{TAKE}{end}"), &wanted);
        template["metadata"]["name"].take();
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"backoffLimit": 0, "template": {
                "metadata": template["metadata"], "spec": template["spec"]}}});
        namespace.apply(&job).await?;
    }
    namespace
        .until("job", "good", "complete", |job| condition(job, "Complete"))
        .await?;
    namespace
        .until("job", "bad", "failed", |job| condition(job, "Failed"))
        .await?;
    // Whoever had it last has let go of it by itself: nobody had to take it over.
    let lock = namespace
        .until("dlock", "close", "free", |lock| {
            lock["status"]["lease"].is_null()
        })
        .await?;
    let incidents = lock["status"]["incidents"].as_array();
    ensure!(incidents.is_none_or(Vec::is_empty), "{}", lock["status"]);
    let token = &lock["status"]["token"];
    ensure!(token.as_u64() > Some(0), "nobody had it: {lock}");
    Ok(())
}
