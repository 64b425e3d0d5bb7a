//! What an app receives when the cluster does not let its agent acquire a lock, or is not ready for any. Each leaves
//! the store unchanged.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use leasehold::k8s::names::object_name;
use leasehold::protocol::ids::Resource;
use reqwest::Method;
use serde_json::json;

use crate::harness::{Cluster, Pod, TakeOver, eventually};
use crate::support::sidecar;

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("bare").await?;
    namespace.service_account("bare").await?;
    let a = sidecar(&namespace.pod_of("a", "bare").await?, 15).await?;
    let refused = a.acquire("res").await?.problem(403, "forbidden")?;
    let right = "list distributedlocks in leasehold.dev";
    assert_eq!(refused.json["missingRight"], right);
    assert!(namespace.all("distributedlocks").await?.is_empty());
    assert!(namespace.all("locksessions").await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_continue_token_is_refused() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("continue").await?;
    let a = sidecar(&namespace.pod("a").await?, 15).await?;
    for garbage in ["garbage", "e30", "%F0%9F%94%92"] {
        let path = format!("/v1/locks?continue={garbage}");
        let refused = a.call(Method::GET, &path, None).await?;
        let refused = refused.problem(400, "invalid_request")?;
        let said = refused.json["detail"].as_str().unwrap_or_default();
        assert!(said.contains("list again without continue"), "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_resource_under_the_locks_name_is_a_collision() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("collision").await?;
    let a = sidecar(&namespace.pod("a").await?, 15).await?;
    let name = object_name(&Resource::parse("Nightly report")?);
    let squatter = json!({
        "apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
        "metadata": {"name": name}, "spec": {"resource": "somebody else's"},
    });
    namespace.create(&squatter).await?;

    let refused = a.acquire("Nightly report").await?;
    let refused = refused.problem(409, "name_collision")?;
    assert_eq!(refused.json["guards"], "somebody else's");
    let lock = namespace.lock(&name).await?.unwrap_or_default();
    assert!(lock.get("status").is_none(), "{lock}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_quota_is_reported_as_one() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("quota").await?;
    let a = sidecar(&namespace.pod("a").await?, 15).await?;
    let limit = json!({"count/distributedlocks.leasehold.dev": "0"});
    let quotas = Api::<ResourceQuota>::namespaced(namespace.client.clone(), &namespace.name);
    let quota =
        serde_json::from_value(json!({"metadata": {"name": "q"}, "spec": {"hard": limit}}))?;
    quotas.create(&PostParams::default(), &quota).await?;
    // What the quota controller would do.
    let counted = json!({"status": {"hard": limit, "used": limit}});
    let params = PatchParams::default();
    quotas
        .patch_status("q", &params, &Patch::Merge(&counted))
        .await?;

    // The API server learns of quotas by a watch.
    let answer = eventually("the quota to count", Duration::from_secs(20), async || {
        let resource = format!("res-{}", fastrand::u64(..));
        let answer = a.acquire(&resource).await.ok()?;
        (answer.status != 200).then_some(answer)
    });
    let answer = answer.await?.problem(403, "quota_exceeded")?;
    assert!(
        answer.json["detail"]
            .to_string()
            .contains("exceeded quota: q")
    );
    let before = namespace.all("distributedlocks").await?.len();
    a.acquire("one-more")
        .await?
        .problem(403, "quota_exceeded")?;
    assert_eq!(namespace.all("distributedlocks").await?.len(), before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_namespace_error_names_the_command_to_run() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("there").await?;
    // No pod is in a missing namespace; a user who tries things out may name one.
    let pod = Pod {
        namespace: "not-there".to_owned(),
        kubeconfig: cluster.control_plane().admin().clone(),
        ..namespace.pod("a").await?
    };
    let a = sidecar(&pod, 15).await?;
    let refused = a.acquire("res").await?.problem(503, "not_installed")?;
    let detail = refused.json["detail"].to_string();
    assert!(
        detail.contains("`kubectl create namespace not-there`"),
        "{detail}"
    );
    assert_eq!(refused.retry_after, None);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_crds_are_named_with_the_install_command() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("bare").await?;
    let a = sidecar(&namespace.pod("a").await?, 15).await?;
    let delete = ["delete", "-f", "crds", "--wait=false"];
    namespace.kubectl(&delete).await?.ok()?;

    // The API server forgets them a moment after they are gone.
    let limit = Duration::from_secs(30);
    let refused = eventually("the definitions to be missed", limit, async || {
        let answer = a.acquire("res").await.ok()?;
        (answer.code() == "not_installed").then_some(answer)
    });
    let refused = refused.await?.problem(503, "not_installed")?;
    let detail = refused.json["detail"].to_string();
    assert!(detail.contains(leasehold::crd::INSTALL_COMMAND), "{detail}");
    assert_eq!(refused.retry_after, None);
    let list = a.list("").await?.problem(503, "not_installed")?;
    assert_eq!(list.retry_after, None);
    Ok(())
}
