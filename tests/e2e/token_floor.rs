//! A floor of tokens that is raised while sidecars run.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::harness::{Namespace, PATIENCE, Sidecar, TakeOver, eventually, read_file, repository};
use crate::support::{BINARY, Pair};

const FLOOR: u64 = 1_000_000_000_000;

/// The shipped policy as the chart writes it for this floor, for one namespace alone: others have none.
fn policy(namespace: &Namespace) -> Result<Value> {
    let file = repository("charts/leasehold/files/admission/token-floor.yaml");
    let mut policy = read_file(&file)?.into_iter().next().context("the policy")?;
    policy["metadata"]["name"] = json!(format!("token-floor-of-{}", namespace.name));
    let variable = &mut policy["spec"]["variables"][0];
    ensure!(variable["name"] == "tokenFloor", "{variable}");
    variable["expression"] = json!(FLOOR.to_string());
    policy["spec"]["matchConstraints"]["namespaceSelector"] =
        json!({"matchLabels": {"kubernetes.io/metadata.name": namespace.name}});
    Ok(policy)
}

/// Without the policy the last of these acquires would give a token below the one before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_from_before_a_raised_floor_gets_no_lock() -> Result<()> {
    let Pair {
        namespace, a: old, ..
    } = Pair::start("token-floor", TakeOver::Peer, 15).await?;
    let first = old.acquire("res").await?.granted()?;
    ensure!(first.token < FLOOR, "{first:?}");
    old.release_for_good(&first.id).await?;
    namespace.cluster.enforce(&policy(&namespace)?).await?;

    let refusal = eventually("the floor to be in force", PATIENCE, async || {
        let answer = old.acquire("elsewhere").await.ok()?;
        if let Ok(lease) = answer.granted() {
            old.release_for_good(&lease.id).await.ok()?;
            return None;
        }
        old.acquire("elsewhere").await.ok()
    });
    let refusal = refusal.await?.problem(403, "forbidden")?;
    let words = refusal.json["detail"].as_str().unwrap_or_default();
    ensure!(
        words.contains("tokenFloor") && words.contains("recreate pod a"),
        "{words}"
    );

    let pod = namespace.pod("new").await?;
    let new = Sidecar::launch(BINARY, &pod).arg(&format!("--token-floor={FLOOR}"));
    let new = new.start().await?;
    let second = new.acquire("res").await?.granted()?;
    ensure!(second.token > FLOOR, "{second:?}");
    new.release_for_good(&second.id).await?;
    // As the operator does when it was idle for a day.
    namespace.kubectl(&["delete", "dlock", "res"]).await?.ok()?;
    old.acquire("res").await?.problem(403, "forbidden")?;
    let third = new.acquire("res").await?.granted()?;
    ensure!(third.token > second.token, "{third:?} after {second:?}");
    Ok(())
}
