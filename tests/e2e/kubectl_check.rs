//! `kubectl leasehold check` against an installation of the chart: healthy, then with each of its faults made on
//! purpose. No kubelet and no controller runs, so the test writes what they would report.

mod installation;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::harness::{KubeVersion, OPERATOR_NAMESPACE, PATIENCE, eventually};
use installation::{Checked, FLOOR, Installation, pod_with_sidecar};

#[tokio::test(flavor = "multi_thread")]
async fn check_names_each_fault_of_an_installation() -> Result<()> {
    let mut installation = Installation::start(KubeVersion::from_env()?).await?;
    healthy(&installation).await?;
    missing_rights_are_skipped(&installation).await?;
    missing_role(&installation).await?;
    unexpected_peer_mode(&installation).await?;
    old_definition(&installation).await?;
    mixed_token_floors(&installation).await?;
    pods_without_a_working_sidecar(&installation).await?;
    // All is repaired.
    healthy(&installation).await?;
    no_operator(&mut installation).await?;
    expired_certificate(&installation).await
}

async fn healthy(installation: &Installation) -> Result<()> {
    let checked = installation.check(&["--pod", "injected"]).await?;
    checked.has_failed(&[])?;
    let not_ok = checked
        .results
        .iter()
        .filter(|result| result["status"] != "ok");
    let not_ok: Vec<_> = not_ok.collect();
    ensure!(not_ok.is_empty(), "{not_ok:#?}");
    let text = installation
        .plugin(&["check", "--pod", "injected"])
        .await?
        .ok()?;
    ensure!(text.contains("√ ") && !text.contains('\u{1b}'), "{text}");
    ensure!(text.trim_end().ends_with("0 failed, 0 skipped"), "{text}");
    let objects = installation
        .release
        .versions(&[lock_of_the_dry_run()])
        .await?;
    ensure!(objects.is_empty(), "the dry run has made {objects:?}");
    // A second installation would be rejected.
    let pre = installation.check(&["--pre"]).await?;
    pre.has_failed(&["pre-absent"])
}

fn lock_of_the_dry_run() -> Value {
    json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
        "metadata": {"name": "leasehold-check", "namespace": "apps"}})
}

/// A user with the role `leasehold-view` in the namespace: what it must not read is skipped, and fails nothing.
async fn missing_rights_are_skipped(installation: &Installation) -> Result<()> {
    let bind = [
        "create",
        "rolebinding",
        "viewer",
        "--clusterrole=leasehold-view",
        "--user=viewer",
    ];
    installation.apps.kubectl(&bind).await?.ok()?;
    let what = "the viewer's right";
    let checked = eventually(what, PATIENCE, async || {
        let checked = installation.check(&["--as", "viewer"]).await.ok()?;
        (checked.status("sidecar-versions") == Some("ok")).then_some(checked)
    });
    let checked = checked.await?;
    checked.has_failed(&[])?;
    for (id, right) in [
        (
            "definition-distributedlocks",
            "you cannot get customresourcedefinitions",
        ),
        (
            "policies-installed",
            "you cannot list validatingadmissionpolicies",
        ),
        ("operator-ready", "you cannot list deployments"),
        (
            "operator-leader",
            "you cannot list distributedlocks in all namespaces",
        ),
        (
            "webhook-configuration",
            "you cannot get mutatingwebhookconfigurations",
        ),
        (
            "rights-service-account",
            "you cannot create subjectaccessreviews",
        ),
        (
            "dry-run",
            "you cannot create distributedlocks in namespace apps",
        ),
    ] {
        ensure!(
            checked.status(id) == Some("skipped"),
            "{id}: {:#?}",
            checked.results
        );
        checked.says(id, right)?;
    }
    Ok(())
}

/// The fix is run as it is printed.
async fn missing_role(installation: &Installation) -> Result<()> {
    let args = ["--namespace", "plain", "--service-account", "worker"];
    let checked = installation.check(&args).await?;
    checked.has_failed(&["rights-service-account"])?;
    checked.says("rights-service-account", "cannot create distributedlocks")?;
    let fix = checked.fix("rights-service-account")?;
    let command: Vec<_> = fix.split_whitespace().collect();
    ensure!(command[0] == "kubectl", "{fix}");
    installation.admin(&command[1..]).await?;
    until_ok(installation, &args).await?;

    let role = ["delete", "clusterrole", "leasehold-sidecar"];
    installation.admin(&role).await?;
    let checked = until(
        installation,
        "the loss of the rights",
        &args,
        "rights-service-account",
        "failed",
    )
    .await?;
    checked.has_failed(&["rights-role", "rights-service-account"])?;
    installation.apply("rbac/sidecar.yaml").await?;
    until_ok(installation, &args).await
}

async fn unexpected_peer_mode(installation: &Installation) -> Result<()> {
    installation.apply("admission/take-over-peer.yaml").await?;
    let checked = installation.check(&[]).await?;
    checked.has_failed(&["policies-mode"])?;
    checked.says("policies-mode", "unexpected peer mode")?;
    ensure!(checked.status("sidecars-mode") == Some("warning"));
    installation
        .apply("admission/take-over-strict.yaml")
        .await?;

    let binding = [
        "delete",
        "validatingadmissionpolicybinding",
        "leasehold-session-revoke",
    ];
    installation.admin(&binding).await?;
    let checked = installation.check(&[]).await?;
    checked.has_failed(&["policies-bound"])?;
    checked.says("policies-bound", "leasehold-session-revoke")?;
    installation.apply("admission/take-over-strict.yaml").await
}

async fn old_definition(installation: &Installation) -> Result<()> {
    let field =
        "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/longHeldSeconds";
    let patch = json!([{"op": "remove", "path": field}]).to_string();
    let name = "distributedlocks.leasehold.dev";
    installation
        .admin(&["patch", "crd", name, "--type=json", "-p", &patch])
        .await?;
    let checked = installation.check(&[]).await?;
    checked.has_failed(&["definition-distributedlocks"])?;
    checked.says("definition-distributedlocks", "spec.longHeldSeconds")?;
    installation.apply(&format!("crds/{name}.yaml")).await
}

async fn mixed_token_floors(installation: &Installation) -> Result<()> {
    let pod = pod_with_sidecar("old-floor", FLOOR + 5);
    installation.make(&pod).await?;
    let checked = installation.check(&[]).await?;
    checked.has_failed(&["token-floors"])?;
    checked.says("token-floors", "5 in pod old-floor")?;
    checked.says("token-floors", "0 in the operator")?;
    installation
        .apps
        .kubectl(&["delete", "pod", "old-floor", "--force"])
        .await?
        .ok()?;
    Ok(())
}

async fn pods_without_a_working_sidecar(installation: &Installation) -> Result<()> {
    let bare = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare", "namespace": "apps"},
        "spec": {"serviceAccountName": "app", "containers": [{"name": "app", "image": "app"}]}});
    installation.make(&bare).await?;
    let checked = installation.check(&["--pod", "bare"]).await?;
    checked.has_failed(&["pod-sidecar"])?;
    checked.says("pod-sidecar", "its namespace injects on request")?;
    let checked = installation.check(&["--pod", "none-such"]).await?;
    checked.says("pod-sidecar", "does not exist")?;
    installation.report_pod("injected", false).await?;
    let checked = installation.check(&["--pod", "injected"]).await?;
    checked.has_failed(&["pod-ready"])?;
    checked.says("pod-ready", "CrashLoopBackOff")?;
    installation.report_pod("injected", true).await
}

async fn no_operator(installation: &mut Installation) -> Result<()> {
    drop(installation.operator.take());
    installation.report_operator(0).await?;
    let checked = until(
        installation,
        "the operator's session to expire",
        &[],
        "operator-leader",
        "failed",
    )
    .await?;
    checked.has_failed(&["operator-ready", "operator-leader"])?;
    checked.says("operator-ready", "0 of 2 replicas")?;
    installation
        .admin(&[
            "-n",
            OPERATOR_NAMESPACE,
            "delete",
            "deployment",
            "leasehold-operator",
        ])
        .await?;
    let checked = installation.check(&[]).await?;
    checked.has_failed(&["operator-ready", "operator-leader"])?;
    checked.says("operator-ready", "no operator is installed")
}

async fn expired_certificate(installation: &Installation) -> Result<()> {
    let absent = ["operator-ready", "operator-leader"];
    installation.replace_certificate(-1).await?;
    let checked = installation.check(&[]).await?;
    checked.has_failed(&[&absent[..], &["webhook-certificate", "webhook-ca"]].concat())?;
    checked.says("webhook-certificate", "expired")?;
    checked.says("webhook-ca", "leasehold-webhook.leasehold-system.svc")?;
    installation.replace_certificate(3).await?;
    let checked = installation.check(&[]).await?;
    ensure!(
        checked.status("webhook-certificate") == Some("warning"),
        "{:#?}",
        checked.results
    );
    installation
        .admin(&[
            "-n",
            OPERATOR_NAMESPACE,
            "delete",
            "endpointslice",
            "leasehold-webhook",
        ])
        .await?;
    installation
        .admin(&[
            "-n",
            OPERATOR_NAMESPACE,
            "delete",
            "secret",
            "leasehold-webhook-cert",
        ])
        .await?;
    let checked = installation.check(&[]).await?;
    checked.has_failed(&[&absent[..], &["webhook-endpoints", "webhook-certificate"]].concat())?;

    installation
        .admin(&[
            "delete",
            "mutatingwebhookconfiguration",
            "leasehold-injector",
        ])
        .await?;
    let checked = installation.check(&[]).await?;
    checked.has_failed(&[&absent[..], &["webhook-configuration"]].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn check_before_an_installation_finds_an_empty_cluster() -> Result<()> {
    let installation = Installation::bare(KubeVersion::from_env()?).await?;
    let checked = Checked::of(
        &installation
            .plugin(&["check", "--pre", "-o", "json"])
            .await?,
    )?;
    checked.has_failed(&[])?;
    ensure!(
        checked
            .results
            .iter()
            .all(|result| result["status"] == "ok"),
        "{:#?}",
        checked.results
    );
    let as_nobody = ["check", "--pre", "--as", "nobody", "-o", "json"];
    let checked = Checked::of(&installation.plugin(&as_nobody).await?)?;
    checked.has_failed(&["pre-rights"])?;
    checked.says("pre-rights", "create customresourcedefinitions")?;
    // Nothing is installed, and that is not an error of the command.
    let checked = Checked::of(&installation.plugin(&["check", "-o", "json"]).await?)?;
    checked.says("definition-distributedlocks", "is not installed")?;
    checked.says("operator-ready", "no operator is installed")?;
    checked.says("dry-run", "does not serve the kind")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_an_api_server_that_does_not_answer() -> Result<()> {
    let directory = crate::harness::directory()?;
    let file = directory.join("check-of-no-server.kubeconfig");
    let content = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
    std::fs::write(&file, content.to_string())?;
    let file = file.to_str().context("a path")?;
    let checked = Checked::of(&installation::run(file, &["check", "-o", "json"]).await?)?;
    checked.has_failed(&["api-reachable"])?;
    ensure!(checked.results.len() == 1, "{:#?}", checked.results);
    checked.says("api-reachable", "cannot be reached")
}

async fn until(
    installation: &Installation,
    what: &str,
    args: &[&str],
    id: &str,
    status: &str,
) -> Result<Checked> {
    eventually(what, PATIENCE, async || {
        let checked = installation.check(args).await.ok()?;
        (checked.status(id) == Some(status)).then_some(checked)
    })
    .await
}

async fn until_ok(installation: &Installation, args: &[&str]) -> Result<()> {
    let checked = until(
        installation,
        "the rights",
        args,
        "rights-service-account",
        "ok",
    )
    .await?;
    checked.has_failed(&[])
}
