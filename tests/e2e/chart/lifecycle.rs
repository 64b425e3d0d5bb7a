//! From the installation to the last command of NOTES.txt, by either Helm.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::Client;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::release::{Release, title};
use crate::harness::{
    HelmVersion, KubeVersion, Namespace, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, Operator, PATIENCE,
    eventually, look_up, place_of, repository, until_policies_are_enforced,
};
use crate::support::{BINARY, sidecar};

/// A namespace with pods that hold locks.
pub(crate) const APPS: &str = "apps";
const LIMIT: Duration = PATIENCE;

#[tokio::test(flavor = "multi_thread")]
async fn helm_4_installs_upgrades_and_uninstalls_the_chart() -> Result<()> {
    lifecycle(KubeVersion::from_env()?, HelmVersion::Four).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "Kubernetes 1.33; `make floor` runs it"]
async fn helm_3_installs_and_uninstalls_it_on_the_promised_floor() -> Result<()> {
    lifecycle(KubeVersion::Floor, HelmVersion::Three).await
}

async fn lifecycle(kube: KubeVersion, helm: HelmVersion) -> Result<()> {
    let release = Release::on(kube, helm).await?;
    let notes = release.install(&[]).await?;
    let objects = release.manifest().await?;
    installed_is_what_is_tested_elsewhere(&release, &objects).await?;
    let apps = namespace_with_locks(&release).await?;
    let operator = operator_of(&release, &objects).await?;
    let secret = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "leasehold-webhook-cert", "namespace": OPERATOR_NAMESPACE}});
    let operators = [secret, until_bound(&release).await?];
    the_operator_has_no_other_say(&release).await?;
    let pod = apps.pod("a").await?;
    let sidecar = sidecar(&pod, 6).await?;
    // For longer than all that follows takes on a slow machine.
    let asked = json!({"resource": "held", "ownerId": "a", "ttlSeconds": 600});
    let lease = sidecar.acquire_with(&asked).await?.granted()?;

    upgrades_change_what_was_asked_for(&release, &objects, &operators).await?;
    the_mode_is_switched_and_back(&release).await?;

    release.uninstall().await?;
    drop(operator);
    what_pods_need_stays(&release, &objects, &operators).await?;
    sidecar.renew(&lease.id).await?.expect(200)?;
    sidecar.acquire("new").await?.granted()?;
    let before = apps.lock("held").await?.context("the lock")?;
    release.install(&[]).await?;
    ensure!(release.versions(&objects).await?.len() == objects.len());
    let adopted = apps.lock("held").await?.context("the lock")?;
    ensure!(adopted["metadata"]["uid"] == before["metadata"]["uid"]);
    sidecar.renew(&lease.id).await?.expect(200)?;

    drop(sidecar);
    release.uninstall().await?;
    let guide = std::fs::read_to_string(repository("docs/install.md"))?;
    for command in commands_to_remove_the_rest(&notes) {
        ensure!(guide.contains(command), "docs/install.md has no {command}");
        let args: Vec<_> = command.split_whitespace().skip(1).collect();
        let admin = release.cluster.control_plane().admin();
        admin.kubectl(&args).await?.ok()?;
    }
    let all = [&objects[..], &operators[..]].concat();
    let left = release.versions(&all).await?;
    ensure!(left.is_empty(), "still there: {left:?}");
    Ok(())
}

/// The other tests apply these files themselves; here Helm did, through the chart.
async fn installed_is_what_is_tested_elsewhere(release: &Release, objects: &[Value]) -> Result<()> {
    let mut files = vec!["flowcontrol.yaml".to_owned()];
    for folder in ["admission", "crds", "rbac"] {
        let path = repository("charts/leasehold/files").join(folder);
        for file in std::fs::read_dir(path)? {
            files.push(format!("{folder}/{}", file?.file_name().display()));
        }
    }
    // What is off by default, and what another mode removes.
    let absent = [
        "admission/resource-prefixes.yaml",
        "admission/take-over-peer.yaml",
        "admission/token-floor.yaml",
        "rbac/operator-accounts.yaml",
        "rbac/operator-leader-labels.yaml",
        "rbac/sidecar-events.yaml",
    ];
    for file in &files {
        if !absent.contains(&file.as_str()) {
            release.has_shipped(file).await?;
        }
    }
    let made = release.versions(objects).await?;
    ensure!(made.len() == objects.len(), "some are missing: {made:?}");
    Ok(())
}

/// A namespace that is labelled as NOTES.txt says, and nothing else.
pub(crate) async fn namespace_with_locks(release: &Release) -> Result<Namespace> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": APPS,
        "labels": {"leasehold.dev/injection": "on-request"}}});
    make(&release.client, &namespace).await?;
    let namespace = Namespace {
        name: APPS.to_owned(),
        client: release.client.clone(),
        cluster: release.cluster.clone(),
    };
    namespace.service_account("app").await?;
    Ok(namespace)
}

/// The operator in a pod of the chart's account, with the chart's arguments; ready, which it is when the
/// API server would trust its webhook.
pub(crate) async fn operator_of(release: &Release, objects: &[Value]) -> Result<Operator> {
    let find = |kind: &str| objects.iter().find(|object| object["kind"] == kind);
    let deployment = find("Deployment").context("a Deployment")?;
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let args = container["args"].as_array().context("arguments")?;
    let mut args: Vec<_> = args.iter().filter_map(Value::as_str).collect();
    ensure!(args.remove(0) == "operator");
    // How it logs and where it listens is the harness's, and no volumes are mounted here.
    let others = ["--webhook-listen", "--injection-config", "--log-format"];
    args.retain(|arg| !others.iter().any(|other| arg.starts_with(other)));
    let injection = find("ConfigMap").context("a ConfigMap")?["data"]["injection.yaml"].as_str();
    let directory = release.cluster.control_plane().directory();
    let file = directory.join("injection.yaml");
    std::fs::write(&file, injection.context("injection.yaml")?)?;
    let file = file.display().to_string();
    args.extend(["--webhook-listen=127.0.0.1:0", "--injection-config", &file]);
    let pod = release.cluster.operator_pod("operator").await?;
    let operator = Operator::start(BINARY, &pod, &args).await?;
    operator.until_active().await?;
    eventually("the operator to be ready", LIMIT, async || {
        let (status, _) = operator.admin("/readyz").await.ok()?;
        (status == 200).then_some(())
    })
    .await?;
    Ok(operator)
}

/// What each webhook trusts.
async fn trusted(release: &Release) -> Result<Vec<Value>> {
    let live = release.live(&injector()).await?;
    let webhooks = live["webhooks"].as_array().context("webhooks")?;
    let trusted = webhooks
        .iter()
        .map(|webhook| &webhook["clientConfig"]["caBundle"]);
    Ok(trusted.cloned().collect())
}

/// What the operator's binding in the labelled namespace is known by, when it is there.
pub(crate) async fn until_bound(release: &Release) -> Result<Value> {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "leasehold-sidecar", "namespace": APPS}});
    eventually("the operator's RoleBinding", LIMIT, async || {
        look_up(&release.client, &binding).await.ok().flatten()
    })
    .await?;
    Ok(binding)
}

/// The right to patch a webhook's configuration is the right to be shown anything; a policy leaves of it
/// one field.
async fn the_operator_has_no_other_say(release: &Release) -> Result<()> {
    until_policies_are_enforced(&release.client).await?;
    let operator = as_operator(release).await?;
    let (api, name) = place_of(&operator, &injector()).await?;
    let secrets = json!([{"operations": ["*"], "apiGroups": [""], "apiVersions": ["v1"],
        "resources": ["secrets"], "scope": "*"}]);
    // A garbage collector would delete objects of a deleted owner.
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"});
    for (path, value) in [
        ("/webhooks/0/rules", secrets),
        ("/webhooks/0/namespaceSelector", json!({})),
        ("/webhooks/1/objectSelector", json!({})),
        ("/webhooks/1/failurePolicy", json!("Fail")),
        ("/webhooks/0/clientConfig/service/namespace", json!(APPS)),
        ("/webhooks", json!([])),
        ("/metadata/ownerReferences", json!([owner])),
        ("/metadata/labels", json!({})),
    ] {
        let patch = json!([{"op": "add", "path": path, "value": value}]);
        let patch = Patch::Json::<()>(serde_json::from_value(patch)?);
        let said = api.patch(&name, &PatchParams::default(), &patch).await;
        let said = said
            .err()
            .with_context(|| format!("{path} was not refused"))?;
        let words = "only the trusted CA of a webhook's configuration";
        ensure!(said.to_string().contains(words), "{path}: {said}");
    }
    Ok(())
}

async fn as_operator(release: &Release) -> Result<Client> {
    let mut config = release.cluster.control_plane().admin().config().await?;
    let user = format!("system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_ACCOUNT}");
    config.auth_info.impersonate = Some(user);
    config.auth_info.impersonate_groups = Some(vec!["system:authenticated".to_owned()]);
    Ok(Client::try_from(config)?)
}

fn injector() -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration", "metadata": {"name": "leasehold-injector"}})
}

pub(crate) async fn make(client: &Client, object: &Value) -> Result<()> {
    let (api, _) = place_of(client, object).await?;
    let made = serde_json::from_value(object.clone())?;
    let made = api.create(&PostParams::default(), &made).await;
    made.with_context(|| title(object)).map(drop)
}

async fn upgrades_change_what_was_asked_for(
    release: &Release,
    objects: &[Value],
    operators: &[Value],
) -> Result<()> {
    let all = [objects, operators].concat();
    let authority = trusted(release).await?;
    ensure!(authority.len() == 2 && authority.iter().all(Value::is_string));
    let before = release.versions(&all).await?;
    ensure!(before.len() == all.len(), "some are missing: {before:?}");
    release.upgrade(&[]).await?;
    ensure!(release.versions(&all).await? == before, "written in vain");

    release
        .upgrade(&["--set", "sidecar.logLevel=debug,operator.replicas=3"])
        .await?;
    let mut changed = BTreeSet::new();
    for (object, version) in &release.versions(&all).await? {
        if before.get(object) != Some(version) {
            changed.insert(object.clone());
        }
    }
    let expected = [
        "ConfigMap leasehold-system leasehold-injection",
        "Deployment leasehold-system leasehold-operator",
    ];
    ensure!(changed == expected.map(str::to_owned).into(), "{changed:?}");

    // A change of the very object that the operator has its part in.
    release
        .upgrade(&["--set", "webhook.certificates.mode=secret"])
        .await
        .err()
        .context("a Secret must be named")?;
    release
        .upgrade(&["--set", "webhook.certificates.mode=certManager"])
        .await
        .err()
        .context("cert-manager is not there")?;
    release.upgrade(&[]).await?;
    ensure!(trusted(release).await? == authority, "it has lost it");
    Ok(())
}

/// The take-over policies of both modes have the same names: one replaces the other, whole.
async fn the_mode_is_switched_and_back(release: &Release) -> Result<()> {
    let peer = ["--set", "admissionPolicy.mode=peer"];
    release.upgrade(&peer).await?;
    release.has_shipped("admission/take-over-peer.yaml").await?;
    release.upgrade(&[]).await?;
    release
        .has_shipped("admission/take-over-strict.yaml")
        .await?;
    let off = ["--set", "admissionPolicy.mode=off"];
    let notes = release.upgrade(&off).await?;
    ensure!(notes.contains("NO ADMISSION POLICIES"), "{notes}");
    release
        .has_shipped("admission/take-over-strict.yaml")
        .await?;
    release.upgrade(&[]).await?;
    release.has_shipped("admission/take-over-strict.yaml").await
}

/// No operator and no webhook is needed by pods that run.
async fn what_pods_need_stays(
    release: &Release,
    objects: &[Value],
    operators: &[Value],
) -> Result<()> {
    let stays = |object: &&Value| {
        let kind = object["kind"].as_str().unwrap_or_default();
        let is_role = kind == "ClusterRole" && object["metadata"]["name"] == "leasehold-sidecar";
        let kinds = [
            "CustomResourceDefinition",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ];
        is_role || kinds.contains(&kind)
    };
    let expected = objects.iter().filter(stays).chain(operators);
    let expected: BTreeSet<_> = expected.map(title).collect();
    let all = [objects, operators].concat();
    let left: BTreeSet<_> = release.versions(&all).await?.into_keys().collect();
    ensure!(left == expected, "{left:?} and not {expected:?}");
    Ok(())
}

/// They end the notes, one a line.
fn commands_to_remove_the_rest(notes: &str) -> Vec<&str> {
    let lines = notes.lines().map(str::trim);
    lines
        .filter(|line| line.starts_with("kubectl") && line.contains(" delete "))
        .collect()
}
