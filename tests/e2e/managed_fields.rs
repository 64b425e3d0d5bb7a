//! What the API server keeps for us across writes of a sidecar that send none of it.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::harness::TakeOver;
use crate::support::Pair;

// What the API server does for us, whatever we send: sidecars rely on it, and keep no managedFields.
#[tokio::test(flavor = "multi_thread")]
async fn managed_fields_survive_writes_without_them() -> Result<()> {
    let Pair { namespace, a, .. } = Pair::start("managed", TakeOver::Peer, 15).await?;
    let lease = a.acquire("res").await?.granted()?;
    let by_a_person = json!({"metadata": {"labels": {"team": "billing"}}});
    let patched = namespace.patch("distributedlocks/res", &by_a_person);
    let before = writers(&patched.await?)?;
    assert_eq!(
        before.len(),
        3,
        "creation, status and the person: {before:?}"
    );

    a.release_for_good(&lease.id).await?;
    a.acquire("res").await?.granted()?;
    let after = namespace.lock("res").await?.unwrap_or_default();
    assert_eq!(after["metadata"]["labels"]["team"], "billing", "{after}");
    assert_eq!(after["status"]["transitions"], 2, "{after}");
    assert_eq!(writers(&after)?, before);
    Ok(())
}

/// Which client wrote which fields: the object's `managedFields` without their times, in any order.
fn writers(object: &Value) -> Result<Vec<String>> {
    let entries = object["metadata"]["managedFields"].as_array();
    let mut writers = Vec::new();
    for entry in entries.context("an object must have managedFields")? {
        let mut entry = entry.clone();
        entry["time"] = Value::Null;
        writers.push(entry.to_string());
    }
    writers.sort();
    Ok(writers)
}
