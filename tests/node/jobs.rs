//! Jobs end as their apps do; the sidecar neither keeps them nor changes their outcome.

use anyhow::{Result, ensure};

use crate::app::{Wanted, asking_pod};
use crate::install::Leasehold;

/// Ends with 9 where the lock was not had.
const TAKE: &str = r#"answer=$(call /v1/locks/acquire '{"resource":"close","ttlSeconds":60,"waitSeconds":60}')
echo "$answer"
case "$answer" in *'"acquired":true'*) ;; *) exit 9 ;; esac
"#;

#[tokio::test]
async fn a_job_with_a_lock_completes_and_another_fails() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("jobs").await?;
    for (name, end) in [("good", "exit 0"), ("bad", "exit 3")] {
        let pod = asking_pod(name, &format!("{TAKE}{end}"), &Wanted::default());
        namespace.start_job(name, &pod).await?;
    }
    namespace.until_job_ended("good", 0).await?;
    namespace.until_job_ended("bad", 3).await?;
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
