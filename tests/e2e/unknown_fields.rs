//! Sidecars live for months: what a newer version wrote, an older one must not erase.

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::harness::{Cluster, TakeOver, eventually};
use crate::support::{Pair, until_renewed};

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_a_newer_version_survive_a_sidecars_writes() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let keep = json!({"x-kubernetes-preserve-unknown-fields": true});
    let status = json!({"x-kubernetes-preserve-unknown-fields": true, "properties": {
        "holder": keep, "lease": keep, "renewalFailures": keep}});
    let client = cluster.admin().await?;
    let api = Api::<CustomResourceDefinition>::all(client);
    for kind in ["distributedlocks", "locksessions"] {
        let name = format!("{kind}.leasehold.dev");
        let mut definition = serde_json::to_value(api.get(&name).await?)?;
        let version = &mut definition["spec"]["versions"][0];
        let schema = &mut version["schema"]["openAPIV3Schema"]["properties"]["status"];
        merge(schema, &status);
        let patch = json!({"spec": {"versions": definition["spec"]["versions"]}});
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
    }

    let Pair { namespace, a, b } = Pair::start_in(&cluster, "newer", 6).await?;
    let lease = a.acquire("res").await?.granted()?;
    let newer = json!({"status": {"newer": {"list": [1, 2]}, "holder": {"newer": "h"},
        "lease": {"newer": "l"}}});
    // The new schema takes effect a moment after it was written.
    eventually(
        "the newer fields to be kept",
        std::time::Duration::from_secs(20),
        async || {
            let lock = namespace
                .patch("distributedlocks/res/status", &newer)
                .await
                .ok()?;
            (lock["status"]["newer"] == newer["status"]["newer"]).then_some(())
        },
    )
    .await?;
    let session = namespace.holding_session("res").await?.unwrap_or_default();
    let name = session["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("locksessions/{name}/status");
    let newer_session = json!({"status": {"newer": "s", "renewalFailures": {"newer": "f"}}});
    let patched = namespace.patch(&path, &newer_session).await?;
    let renewals = patched["status"]["renewals"].as_u64().unwrap_or_default();

    let renewed = until_renewed(&namespace, "res", renewals + 2).await?;
    assert_eq!(renewed["status"]["newer"], "s", "{renewed}");
    assert_eq!(
        renewed["status"]["renewalFailures"]["newer"], "f",
        "{renewed}"
    );
    let lock = namespace.lock("res").await?.unwrap_or_default();
    assert_eq!(lock["status"]["lease"]["newer"], "l", "{lock}");

    a.release_for_good(&lease.id).await?;
    b.acquire("res").await?.granted()?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    assert_eq!(lock["status"]["newer"], newer["status"]["newer"], "{lock}");
    // Fields of the last holder do not apply to the next one.
    assert!(lock["status"]["holder"].get("newer").is_none(), "{lock}");
    Ok(())
}

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

/// Puts the members of `patch` into `target`, at every level.
fn merge(target: &mut Value, patch: &Value) {
    match patch.as_object() {
        Some(members) => {
            for (name, value) in members {
                merge(&mut target[name.as_str()], value);
            }
        }
        None => *target = patch.clone(),
    }
}
