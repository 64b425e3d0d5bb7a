//! What the injection makes of real pods, as a real API server takes it: with strict validation of
//! fields, in namespaces that enforce Pod Security.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod as PodObject;
use kube::Api;
use kube::api::{Patch, PatchParams};
use leasehold::webhook::Decision;
use serde_json::{Value, json};

use crate::harness::{Cluster, Namespace, TakeOver};
use crate::pods;

/// A namespace that admits what a Pod Security Standard admits, and demands what quotas often do.
pub(crate) async fn namespace(cluster: &Arc<Cluster>, standard: &str) -> Result<Namespace> {
    let namespace = cluster.namespace(&format!("injected-{standard}")).await?;
    let labels = json!({"metadata": {"labels": {
        "pod-security.kubernetes.io/enforce": standard,
        "pod-security.kubernetes.io/enforce-version": "latest",
    }}});
    let api = Api::<k8s_openapi::api::core::v1::Namespace>::all(namespace.client.clone());
    let params = PatchParams::default();
    api.patch(&namespace.name, &params, &Patch::Merge(labels))
        .await?;
    Ok(namespace)
}

/// Makes a pod, for a dry run; gives it as it would be.
pub(crate) async fn make(namespace: &Namespace, pod: &Value) -> Result<Value> {
    let path = format!(
        "/api/v1/namespaces/{}/pods?dryRun=All&fieldValidation=Strict",
        namespace.name
    );
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(pod.to_string().into_bytes())?;
    Ok(namespace.client.request(request).await?)
}

/// Pods whose quality-of-service class shows that it was kept, not only that the pod was accepted.
const GUARANTEED: [&str; 4] = [
    "fence-gate-guaranteed",
    "guaranteed",
    "guaranteed-gate",
    "pod-resources",
];

#[tokio::test(flavor = "multi_thread")]
async fn injection_changes_neither_admission_nor_qos_class() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let restricted = namespace(&cluster, "restricted").await?;
    let privileged = namespace(&cluster, "privileged").await?;
    let (mut in_restricted, mut guaranteed) = (0, Vec::new());
    for case in pods::all() {
        let Some(made) = pods::made(&case.pod).filter(|made| *made != case.pod) else {
            continue;
        };
        let (namespace, before) = match make(&restricted, &case.pod).await {
            Ok(before) => {
                in_restricted += 1;
                (&restricted, before)
            }
            Err(_) => (&privileged, make(&privileged, &case.pod).await?),
        };
        let after = make(namespace, &made).await;
        let after = after.with_context(|| format!("{}\n{made:#}", case.name))?;
        let class = |pod: &Value| pod["status"]["qosClass"].as_str().map(str::to_owned);
        let verdict = pods::decided(&case.pod);
        let is_injected = matches!(verdict.decision, Decision::Inject(_));
        let expected = match class(&before).as_deref() {
            Some("Guaranteed") if verdict.warnings.is_empty() => {
                guaranteed.push(case.name.clone());
                "Guaranteed"
            }
            Some("BestEffort") if !is_injected => "BestEffort",
            _ => "Burstable",
        };
        ensure!(class(&after).as_deref() == Some(expected), "{}", case.name);
    }
    println!("{in_restricted} of them in a restricted namespace");
    ensure!(in_restricted >= 12, "only {in_restricted} in restricted");
    ensure!(guaranteed == GUARANTEED, "{guaranteed:?}");
    Ok(())
}

/// Quotas refuse containers without the counted resources.
#[tokio::test(flavor = "multi_thread")]
async fn sidecar_is_accepted_under_a_quota_and_a_limit_range() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let namespace = namespace(&cluster, "restricted").await?;
    let objects = [
        (
            "limitranges",
            json!({"apiVersion": "v1", "kind": "LimitRange",
            "metadata": {"name": "usual"},
            "spec": {"limits": [{"type": "Container", "default": {"cpu": "500m", "memory": "256Mi"},
                "defaultRequest": {"cpu": "100m", "memory": "128Mi"},
                "max": {"cpu": "4", "memory": "4Gi"}}]}}),
        ),
        (
            "resourcequotas",
            json!({"apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": {"name": "usual"},
            "spec": {"hard": {"requests.cpu": "10", "requests.memory": "10Gi",
                "limits.cpu": "20", "limits.memory": "20Gi"}}}),
        ),
    ];
    for (kind, object) in objects {
        let path = format!("/api/v1/namespaces/{}/{kind}", namespace.name);
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())?;
        let _made: Value = namespace.client.request(request).await?;
    }
    let taken = [
        "job",
        "burstable",
        "fence",
        "gate-job",
        "unix-socket",
        "statefulset",
    ];
    for case in pods::all() {
        if taken.contains(&case.name.as_str()) {
            let made = pods::made(&case.pod).context("a pod")?;
            let pod: PodObject = serde_json::from_value(make(&namespace, &made).await?)?;
            ensure!(pod.spec.is_some(), "{}", case.name);
        }
    }
    Ok(())
}
