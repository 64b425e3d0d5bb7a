//! What an app receives from its sidecar with curl, in its own container.

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::app::Wanted;
use crate::install::Leasehold;

#[tokio::test]
async fn an_app_takes_a_lock_by_curl_and_another_pod_is_refused() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("curl").await?;
    let (machine, wanted) = (leasehold.machine, Wanted::default());
    let a = machine
        .app(&namespace, "a", "exec sleep infinity", &wanted)
        .await?;
    let b = machine
        .app(&namespace, "b", "exec sleep infinity", &wanted)
        .await?;

    let lease = a.acquire("orders").await?.with(200)?;
    ensure!(lease["fencingToken"].as_u64() > Some(0), "{lease}");
    let refusal = b.acquire("orders").await?.with(409)?;
    ensure!(refusal["code"] == "lock_held", "{refusal}");
    ensure!(refusal["holder"].to_string().contains("\"a\""), "{refusal}");

    // The holder is the pod that the API server identifies by the sidecar's token.
    let holder = namespace.lock("orders").await?.unwrap_or_default()["status"]["holder"].clone();
    ensure!(
        holder["podUid"] == a.pod["metadata"]["uid"] && holder["pod"] == "a",
        "{holder}"
    );

    let path = format!(
        "/v1/locks/{}",
        lease["leaseId"].as_str().unwrap_or_default()
    );
    a.ask("DELETE", &path, &Value::Null).await?.with(204)?;
    let next = b.acquire("orders").await?.with(200)?;
    ensure!(
        next["fencingToken"].as_u64() > lease["fencingToken"].as_u64(),
        "{next}"
    );
    Ok(())
}
