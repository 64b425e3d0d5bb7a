//! A pod that requests a sidecar and has none gets one Event, whichever replica leads.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace as NamespaceObject, Pod};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{Cluster, Namespace, Operator, PATIENCE, TakeOver, eventually};
use crate::support::BINARY;

const LIMIT: Duration = PATIENCE;
const ARGS: &[&str] = &["--bind-sidecars=namespace", "--session-ttl=5"];

async fn labelled(cluster: &Arc<Cluster>, about: &str) -> Result<Namespace> {
    let namespace = cluster.namespace(about).await?;
    label(&namespace).await?;
    Ok(namespace)
}

async fn label(namespace: &Namespace) -> Result<()> {
    let change = json!({"metadata": {"labels": {"leasehold.dev/injection": "on-request"}}});
    let (params, change) = (PatchParams::default(), Patch::Merge(&change));
    let api = Api::<NamespaceObject>::all(namespace.client.clone());
    api.patch(&namespace.name, &params, &change).await?;
    Ok(())
}

/// A pod with these labels and init containers, which no webhook sees here.
async fn make(namespace: &Namespace, name: &str, labels: Value, inits: Value) -> Result<Pod> {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"initContainers": inits, "containers": [{"name": "app", "image": "app"}]},
    }))?;
    let api = Api::<Pod>::namespaced(namespace.client.clone(), &namespace.name);
    Ok(api.create(&PostParams::default(), &pod).await?)
}

async fn make_asking(namespace: &Namespace, name: &str) -> Result<Pod> {
    make(
        namespace,
        name,
        json!({"leasehold.dev/inject": "true"}),
        json!([]),
    )
    .await
}

/// The pods of a namespace with an Event that they are not injected, in order.
async fn reported_pods(namespace: &Namespace) -> Result<Vec<String>> {
    let events = namespace.events().await?;
    let events = events
        .iter()
        .filter(|event| event["reason"] == "NotInjected");
    let pods = events.map(|event| event["regarding"]["name"].as_str().unwrap_or_default());
    let mut pods: Vec<String> = pods.map(str::to_owned).collect();
    pods.sort();
    Ok(pods)
}

async fn until_reported(namespace: &Namespace, pods: &[&str]) -> Result<()> {
    let what = format!("an Event on each of {pods:?}");
    eventually(&what, LIMIT, async || {
        let told = reported_pods(namespace).await.ok()?;
        pods.iter()
            .all(|pod| told.iter().any(|one| one == pod))
            .then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_without_its_requested_sidecar_gets_one_event() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let first = Operator::start(BINARY, &cluster.operator_pod("op-0").await?, ARGS).await?;
    first.until_active().await?;
    let namespace = labelled(&cluster, "asks").await?;
    let elsewhere = cluster.namespace("not-labelled").await?;
    make_asking(&elsewhere, "early").await?;
    make(&namespace, "silent", json!({}), json!([])).await?;
    make(
        &namespace,
        "wants-none",
        json!({"leasehold.dev/inject": "false"}),
        json!([]),
    )
    .await?;
    let sidecar = json!([{"name": "leasehold", "image": "x", "restartPolicy": "Always"}]);
    let asks = json!({"leasehold.dev/inject": "true"});
    make(&namespace, "by-hand", asks, sidecar.clone()).await?;
    let done = json!({"leasehold.dev/inject": "true", "leasehold.dev/injected": "true"});
    make(&namespace, "injected", done, sidecar).await?;
    let pod = make_asking(&namespace, "without").await?;
    until_reported(&namespace, &["without"]).await?;

    let described = namespace
        .kubectl(&["describe", "pod", "without"])
        .await?
        .ok()?;
    ensure!(described.contains("NotInjected"), "{described}");
    let events = namespace.events().await?;
    let event = events.iter().find(|event| event["reason"] == "NotInjected");
    let event = event.context("an Event")?;
    ensure!(event["regarding"]["uid"].as_str() == pod.metadata.uid.as_deref());
    let note = event["note"].as_str().unwrap_or_default();
    ensure!(
        note.contains("Delete it") && note.contains("leasehold-injector"),
        "{note}"
    );

    first.kill9()?;
    let second = Operator::start(BINARY, &cluster.operator_pod("op-1").await?, ARGS).await?;
    second.until_active().await?;
    ensure!(
        reported_pods(&elsewhere).await?.is_empty(),
        "nobody is injected there"
    );
    label(&elsewhere).await?;
    until_reported(&elsewhere, &["early"]).await?;
    // Events about the others were due before.
    make_asking(&namespace, "last").await?;
    until_reported(&namespace, &["last"]).await?;
    let told = reported_pods(&namespace).await?;
    ensure!(told == ["last", "without"], "{told:?}");
    Ok(())
}
