//! The pods of candidates, and the request to resign, with the operator's rights and under its policies.

use anyhow::{Context, Result};
use leasehold::k8s::names::object_name;
use leasehold::k8s::{K8sCandidates, K8sFleet};
use leasehold::protocol::ids::{GrantId, Resource};
use leasehold::store::StoreError;
use leasehold::store::cluster::{CandidatePod, Candidates as _, PodIdentity};
use leasehold::store::fleet::FleetStore as _;
use serde_json::json;

use super::{make_lock, operator, place};
use crate::harness::{Cluster, OPERATOR_NAMESPACE, TakeOver, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn leader_is_asked_to_resign_only_at_the_version_seen() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let namespace = cluster.namespace("candidates").await?;
    cluster.allow_leader_labels().await?;
    let client = operator(&cluster, &namespace.name).await?;
    let candidates = K8sCandidates::new(client.clone(), OPERATOR_NAMESPACE);
    let fleet = K8sFleet::new(client);
    let name = object_name(&Resource::parse("election:jobs")?);
    make_lock(&namespace, &name, "election:jobs").await?;
    let status = json!({"status": {"token": 5000, "transitions": 1,
        "lease": {"id": "g", "acquiredAt": "2026-01-01T00:00:00.000000Z"},
        "holder": {"ownerId": "o", "pod": "p", "podUid": "u", "session": "s",
            "sessionTtlSeconds": 15}}});
    let patch = async |status| {
        let path = format!("distributedlocks/{name}/status");
        namespace.patch(&path, status).await
    };
    patch(&status).await?;
    let at = place(&namespace, &name);
    let seen = fleet.lock(&at).await?.context("a lock")?;
    patch(&json!({"status": {"transitions": 2}})).await?;
    let grant = GrantId::from("g");
    // Rights take effect a moment after they are given.
    eventually("the conflict", super::LIMIT, async || {
        let stale = candidates
            .request_resignation(&seen, &grant, "not Ready")
            .await;
        matches!(stale, Err(StoreError::Conflict)).then_some(())
    })
    .await?;
    let lock = fleet.lock(&at).await?.context("a lock")?;
    assert_eq!(lock.stored.value.settings.release_request, None);

    let another = GrantId::from("h");
    let another = candidates.request_resignation(&lock, &another, "x").await;
    assert!(
        matches!(another, Err(StoreError::DeniedByPolicy(_))),
        "{another:?}"
    );
    candidates
        .request_resignation(&lock, &grant, "not Ready")
        .await?;
    let lock = fleet.lock(&at).await?.context("a lock")?;
    let asked = lock.stored.value.settings.asked_of(&grant);
    let asked = asked.context("a request")?;
    assert_eq!(&*asked.reason, "not Ready");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn candidate_is_this_very_pod() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let namespace = cluster.namespace("candidates").await?;
    let client = operator(&cluster, &namespace.name).await?;
    let candidates = K8sCandidates::new(client, OPERATOR_NAMESPACE);
    let uid = namespace.pod_of("a", "app").await?.uid;
    namespace
        .kubectl(&[
            "annotate",
            "pod",
            "a",
            "config.leasehold.dev/elect-always=jobs",
        ])
        .await?
        .ok()?;
    let pod = |uid: &str| PodIdentity {
        object_ref: place(&namespace, "a"),
        uid: uid.into(),
    };
    // No kubelet runs here.
    let expected = CandidatePod {
        elects_always: true,
        unready_since: Some("its creation".into()),
        is_deleted: false,
    };
    assert_eq!(candidates.pod(&pod(&uid), "jobs").await?, Some(expected));
    assert_eq!(candidates.pod(&pod("before"), "jobs").await?, None);
    Ok(())
}
