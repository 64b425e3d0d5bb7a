//! The right to run a sidecar in labelled namespaces: granted at once, repaired, left alone if it is foreign, and
//! removed when it is no longer needed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{Cluster, Namespace, Operator, PATIENCE, TakeOver, eventually, now};
use crate::support::{BINARY, sidecar, until_renewed};

const LIMIT: Duration = PATIENCE;
const NAME: &str = "leasehold-sidecar";
const ROLE: &str = "leasehold-operator-bindings";
const FILE: &str = "operator-bindings.yaml";
const BY_NAMESPACE: &[&str] = &[
    "--bind-sidecars=namespace",
    "--keep-sessions-seconds=10",
    "--session-ttl=5",
];

/// Labels a namespace for injection, or takes the label away.
async fn label(namespace: &Namespace, value: Option<&str>) -> Result<()> {
    let change = json!({"metadata": {"labels": {"leasehold.dev/injection": value}}});
    Api::<NamespaceObject>::all(namespace.client.clone())
        .patch(
            &namespace.name,
            &PatchParams::default(),
            &Patch::Merge(&change),
        )
        .await?;
    Ok(())
}

fn bindings(namespace: &Namespace) -> Api<RoleBinding> {
    Api::namespaced(namespace.client.clone(), &namespace.name)
}

async fn binding(namespace: &Namespace) -> Result<Option<Value>> {
    let found = bindings(namespace).get_opt(NAME).await?;
    Ok(found.map(serde_json::to_value).transpose()?)
}

/// Waits until the binding of a namespace is like this; gives it.
async fn until_bound(namespace: &Namespace, subjects: &Value) -> Result<Value> {
    let what = format!("the binding of {} for {subjects}", namespace.name);
    eventually(&what, LIMIT, async || {
        let found = binding(namespace).await.ok()??;
        let is_right = found["subjects"] == *subjects && found["roleRef"]["name"] == NAME;
        is_right.then_some(found)
    })
    .await
}

fn all_accounts(namespace: &Namespace) -> Value {
    let group = format!("system:serviceaccounts:{}", namespace.name);
    json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}])
}

/// A foreign binding of that name.
async fn make_by_hand(namespace: &Namespace, manager: &str, role: &str) -> Result<Value> {
    let object = serde_json::from_value(json!({
        "metadata": {"name": NAME, "labels": {"app.kubernetes.io/managed-by": manager}},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace.name}],
    }))?;
    let made = bindings(namespace)
        .create(&PostParams::default(), &object)
        .await?;
    Ok(serde_json::to_value(made)?)
}

/// The verbs of what an operator wrote to the bindings of a namespace.
fn writes(namespace: &Namespace, operators: &[&Operator]) -> Result<Vec<String>> {
    let served = namespace.cluster.control_plane().served()?.into_iter();
    let path = format!("/namespaces/{}/rolebindings", namespace.name);
    let theirs = served.filter(|one| {
        let is_operators = operators.iter().any(|who| who.pod.uid == one.pod_uid);
        is_operators && one.uri.contains(&path) && !["list", "watch"].contains(&&*one.verb)
    });
    Ok(theirs.map(|one| one.verb).collect())
}

async fn active(cluster: &Arc<Cluster>, name: &str, args: &[&str]) -> Result<Operator> {
    let pod = cluster.operator_pod(name).await?;
    let operator = Operator::start(BINARY, &pod, args).await?;
    operator.until_active().await?;
    Ok(operator)
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_label_gives_rights_until_its_last_session_ends() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let operator = active(&cluster, "op-0", BY_NAMESPACE).await?;
    let namespace = cluster.namespace("bound").await?;
    namespace.service_account("job").await?;
    let pod = namespace.pod_of("j", "job").await?;
    ensure!(!pod.may("create", "locksessions").await?, "nobody gave it");

    label(&namespace, Some("on-request")).await?;
    let labelled = now();
    eventually("the right to make sessions", LIMIT, async || {
        let may = pod.may("create", "locksessions").await.ok()?;
        may.then_some(())
    })
    .await?;
    let took = now().since(labelled);
    println!("measured: the right was there {took:?} after the label");
    ensure!(took < Duration::from_secs(5), "{took:?}");
    until_bound(&namespace, &all_accounts(&namespace)).await?;

    let holder = sidecar(&pod, 5).await?;
    holder.acquire("res").await?.granted()?;
    label(&namespace, None).await?;
    let renewals = |session: &Value| session["status"]["renewals"].as_u64();
    let session = until_renewed(&namespace, "res", 1).await?;
    let before = renewals(&session).context("it renews")?;
    until_renewed(&namespace, "res", before + 2).await?;
    ensure!(binding(&namespace).await?.is_some(), "a session is left");
    label(&namespace, Some("enabled")).await?;
    label(&namespace, None).await?;
    holder.sigterm()?;
    holder.ended().await?;
    eventually("the binding to go", LIMIT, async || {
        binding(&namespace).await.ok()?.is_none().then_some(())
    })
    .await?;
    ensure!(
        namespace.all("locksessions").await?.is_empty(),
        "it was the last"
    );
    let written = writes(&namespace, &[&operator])?;
    ensure!(written == ["create", "delete"], "{written:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn edited_binding_is_repaired_and_a_foreign_one_is_left_alone() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let operator = active(&cluster, "op-0", BY_NAMESPACE).await?;
    let edited = cluster.namespace("edited").await?;
    let right = all_accounts(&edited);
    label(&edited, Some("enabled")).await?;
    until_bound(&edited, &right).await?;
    let change = json!({"subjects": [], "metadata": {"annotations": {"note": "kept"}}});
    bindings(&edited)
        .patch(NAME, &PatchParams::default(), &Patch::Merge(&change))
        .await?;
    let healed = until_bound(&edited, &right).await?;
    ensure!(
        healed["metadata"]["annotations"]["note"] == "kept",
        "{healed}"
    );
    let written = writes(&edited, &[&operator])?;
    ensure!(written == ["create", "update"], "{written:?}");

    let wrong = cluster.namespace("wrong-role").await?;
    make_by_hand(&wrong, "leasehold-operator", "view").await?;
    label(&wrong, Some("enabled")).await?;
    until_bound(&wrong, &all_accounts(&wrong)).await?;

    let foreign = cluster.namespace("foreign").await?;
    let made = make_by_hand(&foreign, "Helm", "view").await?;
    label(&foreign, Some("enabled")).await?;
    until_foreign_is_reported(&foreign).await?;
    let said = operator
        .log()
        .lines()
        .filter(|l| l.contains("RoleBinding not created by Leasehold"))
        .count();
    ensure!(said == 1, "{said} times");

    operator.kill9()?;
    let meanwhile = cluster.namespace("meanwhile").await?;
    label(&meanwhile, Some("enabled")).await?;
    let next = active(&cluster, "op-1", BY_NAMESPACE).await?;
    until_bound(&meanwhile, &all_accounts(&meanwhile)).await?;
    label(&foreign, None).await?;
    // An earlier decision about it comes first.
    let last = cluster.namespace("last").await?;
    label(&last, Some("enabled")).await?;
    until_bound(&last, &all_accounts(&last)).await?;
    ensure!(
        until_foreign_is_reported(&foreign).await? == 1,
        "told once by both"
    );
    let both = [&operator, &next];
    ensure!(
        binding(&foreign).await? == Some(made),
        "it is as it was made"
    );
    for (namespace, expected) in [(&foreign, 0), (&edited, 2), (&meanwhile, 1)] {
        let written = writes(namespace, &both)?;
        ensure!(written.len() == expected, "{}: {written:?}", namespace.name);
    }
    Ok(())
}

/// Waits for the Event on a binding that is not ours; gives how many there are.
async fn until_foreign_is_reported(namespace: &Namespace) -> Result<usize> {
    eventually("an Event on the foreign binding", LIMIT, async || {
        let events = namespace.events().await.ok()?;
        let about = |event: &&Value| {
            event["reason"] == "ForeignBinding" && event["regarding"]["kind"] == "RoleBinding"
        };
        let count = events.iter().filter(about).count();
        (count > 0).then_some(count)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn service_account_mode_binds_labelled_accounts_only() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let args = ["--bind-sidecars=service-account"];
    let operator = active(&cluster, "op-0", &args).await?;
    let namespace = cluster.namespace("accounts").await?;
    label(&namespace, Some("enabled")).await?;
    for account in ["b", "a", "other"] {
        namespace.service_account(account).await?;
    }
    let one = |name: &str| {
        json!({"kind": "ServiceAccount", "name": name,
        "namespace": namespace.name})
    };
    label_account(&namespace, "b", Some("true")).await?;
    until_bound(&namespace, &json!([one("b")])).await?;
    label_account(&namespace, "a", Some("true")).await?;
    until_bound(&namespace, &json!([one("a"), one("b")])).await?;
    let (may, may_not) = (
        namespace.pod_of("p", "a").await?,
        namespace.pod_of("q", "other").await?,
    );
    eventually("the right of one that is labelled", LIMIT, async || {
        let may = may.may("create", "locksessions").await.ok()?;
        may.then_some(())
    })
    .await?;
    ensure!(!may_not.may("create", "locksessions").await?);
    label_account(&namespace, "b", None).await?;
    until_bound(&namespace, &json!([one("a")])).await?;
    label_account(&namespace, "a", Some("false")).await?;
    eventually("the binding to go", LIMIT, async || {
        binding(&namespace).await.ok()?.is_none().then_some(())
    })
    .await?;
    let written = writes(&namespace, &[&operator])?;
    ensure!(
        written == ["create", "update", "update", "delete"],
        "{written:?}"
    );
    Ok(())
}

async fn label_account(namespace: &Namespace, name: &str, value: Option<&str>) -> Result<()> {
    let change = json!({"metadata": {"labels": {"leasehold.dev/sidecar": value}}});
    let path = format!(
        "/api/v1/namespaces/{}/serviceaccounts/{name}",
        namespace.name
    );
    let request = http::Request::patch(path)
        .header("content-type", "application/merge-patch+json")
        .body(change.to_string().into_bytes())?;
    namespace.client.request::<Value>(request).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_bind_right_is_reported_with_its_file_until_granted() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let api = Api::<ClusterRole>::all(cluster.admin().await?);
    let role = api.get(ROLE).await?;
    let mut without_bind = role.clone();
    let rules = without_bind.rules.as_mut().context("rules")?;
    rules.retain(|rule| !rule.verbs.contains(&"bind".to_owned()));
    api.replace(ROLE, &PostParams::default(), &without_bind)
        .await?;
    let operator = active(&cluster, "op-0", BY_NAMESPACE).await?;
    let namespace = cluster.namespace("may-not").await?;
    label(&namespace, Some("enabled")).await?;
    until_said(
        &operator,
        &["reconcile failed", "attempting to grant", FILE],
    )
    .await?;
    ensure!(operator.admin("/readyz").await?.0 == 200);

    // Without any of it there is nothing to decide by.
    api.delete(ROLE, &DeleteParams::default()).await?;
    let blind = Operator::start(BINARY, &cluster.operator_pod("op-1").await?, BY_NAMESPACE).await?;
    until_said(
        &blind,
        &["list/watch forbidden", r#""kind":"binding""#, FILE],
    )
    .await?;
    eventually("it to be unready, for its rights", LIMIT, async || {
        let (status, why) = blind.admin("/readyz").await.ok()?;
        (status == 503 && why.contains(FILE)).then_some(())
    })
    .await?;
    let whole = ClusterRole {
        metadata: kube::core::ObjectMeta {
            name: Some(ROLE.to_owned()),
            ..Default::default()
        },
        ..role
    };
    api.create(&PostParams::default(), &whole).await?;
    until_bound(&namespace, &all_accounts(&namespace)).await?;
    eventually("the other one to be ready", LIMIT, async || {
        let (status, _) = blind.admin("/readyz").await.ok()?;
        (status == 200).then_some(())
    })
    .await
}

/// Waits for a line of the log with all of these words.
async fn until_said(operator: &Operator, words: &[&str]) -> Result<()> {
    let what = format!("a line with {words:?}");
    eventually(&what, LIMIT, async || {
        let log = operator.log();
        let mut lines = log.lines();
        lines.find(|line| words.iter().all(|word| line.contains(word)))?;
        Some(())
    })
    .await
}
