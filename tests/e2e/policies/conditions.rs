//! The conditions of a lock are the operator's, and sidecars drop them with the grant.

use anyhow::{Result, ensure};
use leasehold::crd::lock::ConditionRecord;
use serde_json::json;

use super::fixture::TIME;
use crate::harness::{Cluster, TakeOver};
use crate::support::{Pair, until_queued};

fn condition(kind: &str) -> ConditionRecord {
    ConditionRecord {
        r#type: kind.to_owned(),
        status: "True".to_owned(),
        reason: "Test".to_owned(),
        message: "test".to_owned(),
        last_transition_time: TIME.to_owned(),
    }
}

/// A condition that the sidecars have not seen, and that ends with the grant: once by a hand-over, once when the lock
/// is freed.
#[tokio::test(flavor = "multi_thread")]
async fn sidecars_release_a_lock_marked_long_held() -> Result<()> {
    // One that has no operator: it would take the mark off a free lock itself.
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let Pair { namespace, a, b } = Pair::start_in(&cluster, "marked", 15).await?;
    let mark = json!({"status": {"conditions": [condition("LongHeld")]}});
    let marked = async || {
        let marked = namespace
            .patch("distributedlocks/res/status", &mark)
            .await?;
        ensure!(
            marked["status"]["conditions"][0]["type"] == "LongHeld",
            "{marked}"
        );
        Ok(())
    };
    let first = a.acquire("res").await?.granted()?;
    let waiting = b.wait_for("res", 60).await?;
    until_queued(&namespace, "res", 1).await?;
    marked().await?;
    a.release_for_good(&first.id).await?;
    let second = waiting.answer().await?.granted()?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    assert!(lock["status"].get("conditions").is_none(), "{lock}");

    marked().await?;
    b.release_for_good(&second.id).await?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    assert!(lock["status"].get("conditions").is_none(), "{lock}");

    // As an older version leaves it behind.
    marked().await?;
    a.acquire("res").await?.granted()?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    assert!(lock["status"].get("conditions").is_none(), "{lock}");
    Ok(())
}
