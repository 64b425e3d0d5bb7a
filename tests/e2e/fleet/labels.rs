//! A label is given to a pod, never to its name.

use anyhow::{Context, Result};
use leasehold::k8s::K8sPodLabels;
use leasehold::store::StoreError;
use leasehold::store::cluster::{PodIdentity, PodLabels as _};
use serde_json::Value;

use super::{operator, place};
use crate::harness::{Cluster, Namespace, TakeOver, eventually};

const KEY: &str = "leasehold.dev/leader-x";

/// A pod as the operator knows it.
async fn pod(namespace: &Namespace, name: &str) -> Result<PodIdentity> {
    let pod = namespace.pod_of(name, "app").await?;
    Ok(PodIdentity {
        object_ref: place(namespace, name),
        uid: pod.uid.into(),
    })
}

async fn labels(namespace: &Namespace, name: &str) -> Result<Value> {
    let json = ["get", "pod", name, "--output", "json"];
    let pod = namespace.kubectl(&json).await?.json()?;
    Ok(pod["metadata"]["labels"].clone())
}

/// The operator with the right to label, which takes effect a moment after it was given.
async fn labeller(
    cluster: &std::sync::Arc<Cluster>,
    namespace: &Namespace,
) -> Result<K8sPodLabels> {
    cluster.allow_leader_labels().await?;
    let labeller = K8sPodLabels::new(operator(cluster, &namespace.name).await?);
    let nobody = PodIdentity {
        object_ref: place(namespace, "nobody"),
        uid: "none".into(),
    };
    eventually("the right to label pods", super::LIMIT, async || {
        let answer = labeller.remove(&nobody, KEY).await;
        matches!(answer, Err(StoreError::NotFound(_))).then_some(())
    })
    .await?;
    Ok(labeller)
}

#[tokio::test(flavor = "multi_thread")]
async fn label_is_given_found_and_removed() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let namespace = cluster.namespace("labels").await?;
    let elsewhere = cluster.namespace("labels").await?;
    let labeller = labeller(&cluster, &namespace).await?;
    // Without any labels at first.
    let (a, b) = (pod(&namespace, "a").await?, pod(&namespace, "b").await?);
    labeller.add(&pod(&elsewhere, "a").await?, KEY).await?;
    assert_eq!(labeller.list_pods(&namespace.name, KEY).await?, []);

    namespace
        .kubectl(&["label", "pod", "b", "app=shop"])
        .await?
        .ok()?;
    labeller.add(&a, KEY).await?;
    labeller.add(&b, KEY).await?;
    // Again, which changes nothing.
    labeller.add(&b, KEY).await?;
    let mut having = labeller.list_pods(&namespace.name, KEY).await?;
    having.sort_by(|one, other| one.object_ref.cmp(&other.object_ref));
    assert_eq!(having, [a.clone(), b.clone()]);
    assert_eq!(
        labels(&namespace, "b").await?,
        serde_json::json!({"app": "shop", KEY: "true"})
    );

    labeller.remove(&b, KEY).await?;
    labeller.remove(&b, KEY).await?;
    assert_eq!(labeller.list_pods(&namespace.name, KEY).await?, [a]);
    assert_eq!(
        labels(&namespace, "b").await?,
        serde_json::json!({"app": "shop"})
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn recreated_pod_of_the_same_name_is_left_alone() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let namespace = cluster.namespace("labels").await?;
    let labeller = labeller(&cluster, &namespace).await?;
    let before = pod(&namespace, "web-0").await?;
    namespace
        .kubectl(&["delete", "pod", "web-0", "--force"])
        .await?
        .ok()?;
    let gone = labeller.add(&before, KEY).await;
    assert!(matches!(gone, Err(StoreError::NotFound(_))), "{gone:?}");

    let after = pod(&namespace, "web-0").await?;
    let given = labeller.add(&before, KEY).await;
    assert_eq!(given, Err(StoreError::Conflict));
    assert_eq!(labels(&namespace, "web-0").await?, Value::Null);
    labeller.add(&after, KEY).await?;
    assert_eq!(
        labeller.remove(&before, KEY).await,
        Err(StoreError::Conflict)
    );
    assert_eq!(
        labeller.list_pods(&namespace.name, KEY).await?,
        std::slice::from_ref(&after)
    );
    let nameless = PodIdentity {
        uid: "".into(),
        ..after
    };
    labeller
        .remove(&nameless, KEY)
        .await
        .err()
        .context("a pod without uid was taken")?;
    Ok(())
}
