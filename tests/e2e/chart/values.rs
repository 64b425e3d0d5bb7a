//! The effect of the chart's values, where an API server has to confirm it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::release::{Release, title};
use crate::harness::{
    HelmVersion, KubeVersion, OPERATOR_NAMESPACE, PATIENCE, apply, eventually, look_up, place_of,
};

const LIMIT: Duration = PATIENCE;
/// The kinds of cert-manager and Prometheus Operator that the chart makes objects of.
const OTHERS: [(&str, &str, &str); 5] = [
    ("cert-manager.io", "Certificate", "certificates"),
    ("cert-manager.io", "Issuer", "issuers"),
    ("monitoring.coreos.com", "PodMonitor", "podmonitors"),
    ("monitoring.coreos.com", "PrometheusRule", "prometheusrules"),
    ("monitoring.coreos.com", "ServiceMonitor", "servicemonitors"),
];

#[tokio::test(flavor = "multi_thread")]
async fn high_availability_values_are_installed_and_reverted() -> Result<()> {
    let release = Release::on(KubeVersion::from_env()?, HelmVersion::Four).await?;
    for (group, kind, plural) in OTHERS {
        others_kind(&release, group, kind, plural).await?;
    }
    let high = ["--values", "examples/helm/ha.yaml"];
    release.install(&high).await?;
    let objects = release.manifest().await?;
    for (_, kind, _) in OTHERS {
        let is_there = objects.iter().any(|object| object["kind"] == kind);
        ensure!(is_there || kind == "Issuer", "no {kind}");
    }
    fits_restricted(&release, &objects).await?;
    release.has_shipped("rbac/operator-accounts.yaml").await?;
    release
        .has_shipped("rbac/operator-leader-labels.yaml")
        .await?;
    release
        .has_shipped("admission/resource-prefixes.yaml")
        .await?;
    let before = release.versions(&objects).await?;
    ensure!(
        before.len() == objects.len(),
        "some are missing: {before:?}"
    );
    release.upgrade(&high).await?;
    ensure!(
        release.versions(&objects).await? == before,
        "written in vain"
    );

    // Back to the defaults: all disabled objects are removed, except policies.
    release.upgrade(&[]).await?;
    let now = release.manifest().await?;
    fits_restricted(&release, &now).await?;
    let now: Vec<_> = now.iter().map(title).collect();
    for object in &objects {
        let is_there = look_up(&release.client, object).await?.is_some();
        let is_policy = title(object).starts_with("ValidatingAdmissionPolicy");
        let stays = is_policy || now.contains(&title(object));
        ensure!(is_there == stays, "{}: {is_there}", title(object));
    }
    Ok(())
}

/// A foreign kind, as far as the chart needs it.
async fn others_kind(release: &Release, group: &str, kind: &str, plural: &str) -> Result<()> {
    let version = "v1";
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [{"name": version, "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object",
                    "x-kubernetes-preserve-unknown-fields": true}}}]},
    });
    apply(&release.client, &definition).await?;
    let object = json!({"apiVersion": format!("{group}/{version}"), "kind": kind,
        "metadata": {"name": "none", "namespace": OPERATOR_NAMESPACE}});
    let what = format!("{kind} to be served");
    eventually(&what, LIMIT, async || {
        let (api, name) = place_of(&release.client, &object).await.ok()?;
        api.get_opt(&name).await.ok()
    })
    .await?;
    Ok(())
}

/// Whether the pods that the release makes are admitted where Pod Security `restricted` is enforced.
async fn fits_restricted(release: &Release, objects: &[Value]) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": OPERATOR_NAMESPACE,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    apply(&release.client, &namespace).await?;
    let mut pods = release.hooks().await?;
    pods.retain(|hook| hook["kind"] == "Pod");
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
    let deployment = deployment.context("a Deployment")?;
    let template = &deployment["spec"]["template"];
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"],
        "spec": template["spec"]});
    pod["metadata"]["name"] = json!("of-the-deployment");
    pod["metadata"]["namespace"] = json!(OPERATOR_NAMESPACE);
    pods.push(pod);
    ensure!(pods.len() == 2, "{pods:?}");
    for mut pod in pods {
        // These would have to exist; Pod Security reads none of them.
        pod["spec"]["serviceAccountName"] = json!("leasehold-operator");
        if let Some(spec) = pod["spec"].as_object_mut() {
            spec.remove("priorityClassName");
        }
        let path = format!(
            "/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods?dryRun=All&fieldValidation=Strict"
        );
        let request = http::Request::post(path)
            .header("content-type", "application/json")
            .body(pod.to_string().into_bytes())?;
        let made: Value = release.client.request(request).await?;
        ensure!(made["metadata"]["uid"].is_string());
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn second_release_is_refused_and_crds_go_without_keep() -> Result<()> {
    let release = Release::on(KubeVersion::from_env()?, HelmVersion::Four).await?;
    release.install(&["--set", "rbac.mode=none"]).await?;
    let objects = release.manifest().await?;
    let bindings = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "leasehold-operator-bindings"}});
    let there = look_up(&release.client, &bindings).await?;
    ensure!(there.is_none(), "rights that nobody needs: {there:?}");
    a_second_release_is_refused(&release).await?;

    let injector = objects
        .iter()
        .find(|object| object["kind"] == "MutatingWebhookConfiguration")
        .context("a webhook's configuration")?;
    a_certificate_of_ones_own_is_trusted(&release, injector).await?;

    let without = ["--set", "crds.keep=false,webhook.enabled=false"];
    release.upgrade(&without).await?;
    let injector = look_up(&release.client, injector).await?;
    ensure!(injector.is_none(), "pods that ask could not be made");
    release.uninstall().await?;
    let (definitions, others): (Vec<_>, Vec<_>) = objects
        .into_iter()
        .partition(|object| object["kind"] == "CustomResourceDefinition");
    eventually("the definitions to go", LIMIT, async || {
        let left = release.versions(&definitions).await.ok()?;
        left.is_empty().then_some(())
    })
    .await?;
    let left = release.versions(&others).await?;
    let is_kept = |name: &String| {
        name.starts_with("ValidatingAdmissionPolicy") || name == "ClusterRole leasehold-sidecar"
    };
    ensure!(!left.is_empty() && left.keys().all(is_kept), "{left:?}");
    Ok(())
}

/// The policies know one operator, and the names in the cluster are the chart's.
async fn a_second_release_is_refused(release: &Release) -> Result<()> {
    for (namespace, words) in [
        (
            "elsewhere",
            "must equal \"elsewhere\": current value is \"leasehold-system\"",
        ),
        (
            OPERATOR_NAMESPACE,
            "must equal \"locks\": current value is \"leasehold\"",
        ),
    ] {
        let install = [
            "install",
            "locks",
            "charts/leasehold",
            "--create-namespace",
            "--namespace",
            namespace,
        ];
        let said = release.helm(&install).await?.refused()?;
        ensure!(said.contains(words), "{said}");
    }
    Ok(())
}

async fn a_certificate_of_ones_own_is_trusted(release: &Release, injector: &Value) -> Result<()> {
    let name = "leasehold-webhook.leasehold-system.svc".to_owned();
    let authority = rcgen::generate_simple_self_signed([name])?.cert.pem();
    let file = release.cluster.control_plane().directory().join("ca.pem");
    std::fs::write(&file, &authority)?;
    let file = format!("webhook.certificates.secret.caBundle={}", file.display());
    let values = "rbac.mode=serviceAccount,webhook.certificates.mode=secret,\
         webhook.certificates.secret.name=own";
    let upgrade = ["--set", values, "--set-file", &file];
    release.upgrade(&upgrade).await?;
    release.has_shipped("rbac/operator-accounts.yaml").await?;
    // As the API server itself has bytes in JSON.
    let bytes = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "bytes", "namespace": OPERATOR_NAMESPACE},
        "stringData": {"authority": authority}});
    let bytes = apply(&release.client, &bytes).await?;
    let live = release.live(injector).await?;
    let webhooks = live["webhooks"].as_array().context("webhooks")?;
    ensure!(webhooks.len() == 2);
    for webhook in webhooks {
        let trusted = &webhook["clientConfig"]["caBundle"];
        ensure!(*trusted == bytes.data["data"]["authority"], "{trusted}");
    }
    Ok(())
}
