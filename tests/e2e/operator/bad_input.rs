//! Objects that were edited by hand: no grant results from them, the operator continues, and reports what is wrong.

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::LIMIT;
use crate::harness::{Cluster, Namespace, Operator, TakeOver, eventually};
use crate::support::{BINARY, sidecar, until_free, until_renewed};

/// The shortest that there is.
const TTL: u64 = 3;

async fn operator(cluster: &std::sync::Arc<Cluster>) -> Result<Operator> {
    let operator = Operator::start(BINARY, &cluster.operator_pod("op-0").await?, &[]).await?;
    operator.until_active().await?;
    Ok(operator)
}

/// A lock that is held by whom a person wrote there.
async fn held_by(namespace: &Namespace, lock: &str, session: &str, token: u64) -> Result<()> {
    let object = json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
        "metadata": {"name": lock}, "spec": {"resource": lock}});
    namespace.create(&object).await?;
    let status = json!({"status": {
        "holder": {"ownerId": "o", "pod": "p", "podUid": "u", "session": session,
            "sessionTtlSeconds": TTL},
        "lease": {"id": format!("{lock}-grant"), "acquiredAt": "0001-01-01T00:00:00Z"},
        "token": token}});
    edit(namespace, lock, &status).await?;
    Ok(())
}

async fn edit(namespace: &Namespace, lock: &str, change: &Value) -> Result<Value> {
    let path = format!("distributedlocks/{lock}/status");
    namespace.patch(&path, change).await
}

/// It runs, and its metrics can be read.
async fn ensure_it_is_well(operator: &Operator) -> Result<()> {
    ensure!(operator.admin("/readyz").await?.0 == 200);
    ensure!(operator.metric("leasehold_operator_leading").await? > 0.0);
    let log = operator.log();
    ensure!(!log.contains("panicked") && !log.contains("a task of the operator failed"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn edited_times_and_ids_end_no_live_grant() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let operator = operator(&cluster).await?;
    let namespace = cluster.namespace("edited").await?;
    let a = sidecar(&namespace.pod("a").await?, 6).await?;
    let mut leases = Vec::new();
    for lock in ["first-year", "last-year", "other-pod"] {
        leases.push(a.acquire(lock).await?.granted()?);
    }
    for (lock, at) in [
        ("first-year", "0001-01-01T00:00:00.000000Z"),
        ("last-year", "9999-12-31T23:59:59.999999Z"),
    ] {
        edit(
            &namespace,
            lock,
            &json!({"status": {"lease": {"acquiredAt": at}}}),
        )
        .await?;
    }
    // What decisions hang on cannot be edited at all.
    for holder in [
        json!({"podUid": "another"}),
        json!({"session": "another"}),
        json!({"sessionTtlSeconds": 1_000_000}),
        json!({"sessionTtlSeconds": 0}),
        json!({"sessionTtlSeconds": -7}),
    ] {
        let change = json!({"status": {"holder": holder}});
        let refused = edit(&namespace, "other-pod", &change).await;
        ensure!(refused.is_err(), "{change} was taken");
    }
    edit(
        &namespace,
        "other-pod",
        &json!({"status": {"holder": {"sessionTtlSeconds": 120}}}),
    )
    .await?;

    let session = until_renewed(&namespace, "first-year", 1).await?;
    let name = session["metadata"]["name"].as_str().context("a name")?;
    let path = format!("locksessions/{name}/status");
    let renewals = session["status"]["renewals"].as_u64().context("renewals")?;
    namespace
        .patch(
            &path,
            &json!({"status": {"renewedAt": "9999-12-31T23:59:59.999999Z"}}),
        )
        .await?;
    until_renewed(&namespace, "first-year", renewals + 3).await?;
    for lease in &leases {
        ensure!(a.renew(&lease.id).await?.granted()?.token == lease.token);
    }
    ensure_it_is_well(&operator).await
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_never_existed_holds_a_lock_for_one_ttl_only() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let operator = operator(&cluster).await?;
    let namespace = cluster.namespace("never").await?;
    let names = [
        ("never-was", "never-was"),
        ("no-name", "../../secrets/X y\u{1f512}"),
        ("a-path", "a/../../b?watch=true"),
    ];
    let b = sidecar(&namespace.pod("b").await?, 60).await?;
    for (lock, session) in names {
        held_by(&namespace, lock, session, 5_000_000).await?;
        let next = b.wait_for(lock, 60).await?.answer().await?.granted()?;
        ensure!(next.token > 5_000_999, "{next:?}");
        let object = namespace.lock(lock).await?.unwrap_or_default();
        let incident = &object["status"]["incidents"][0];
        ensure!(incident["kind"] == "Expired", "{object}");
        let reason = incident["reason"].as_str().unwrap_or_default();
        ensure!(reason.contains("missing"), "{incident}");
    }
    // Its token leaves no room for a larger one: the lock is freed.
    held_by(&namespace, "used-up", "never-was", (1 << 53) - 1000).await?;
    let waiting = b.wait_for("used-up", 60).await?;
    let free = until_free(&namespace, "used-up").await?;
    ensure!(
        free["status"]["incidents"][0]["kind"] == "Expired",
        "{free}"
    );
    let answer = waiting.answer().await?;
    ensure!(answer.status != 200, "{}", answer.json);
    ensure_it_is_well(&operator).await
}

/// A custom policy that refuses every end of one lock's grant.
fn untouchable(namespace: &Namespace) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": format!("untouchable-in-{}", namespace.name)},
        "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": ["leasehold.dev"],
                "apiVersions": ["v1alpha1"], "operations": ["UPDATE"],
                "resources": ["distributedlocks/status"]}]},
            "matchConditions": [{"name": "here", "expression": format!(
                "request.namespace == '{}' && request.name == 'untouchable'", namespace.name)}],
            "validations": [{"expression": "!oldObject.?status.holder.hasValue()",
                "message": "nobody ends this one"}],
        },
    })
}

/// Takes from the definition the rule that an older version of it did not have.
async fn accept_any_resource(cluster: &Cluster) -> Result<()> {
    let api = Api::<CustomResourceDefinition>::all(cluster.admin().await?);
    let name = "distributedlocks.leasehold.dev";
    let mut definition = serde_json::to_value(api.get(name).await?)?;
    let versions = &mut definition["spec"]["versions"];
    let schema = &mut versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let resource = schema["properties"]["resource"].as_object_mut();
    let rules = resource.and_then(|fields| fields.remove("x-kubernetes-validations"));
    ensure!(rules.is_some(), "the definition has no such rule");
    let patch = json!({"spec": {"versions": versions}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_or_untouchable_locks_are_logged_and_block_nothing() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    accept_any_resource(&cluster).await?;
    let operator = operator(&cluster).await?;
    let namespace = cluster.namespace("stuck").await?;
    namespace.cluster.enforce(&untouchable(&namespace)).await?;
    held_by(&namespace, "untouchable", "never-was", 5000).await?;
    // Two waiters with one id: when one of them gets the lock, both entries are removed.
    let waiter = |session: &str| {
        json!({"leaseId": "twice", "ownerId": "o", "pod": "p", "podUid": "u", "session": session,
            "sessionTtlSeconds": 120, "queuedAt": "0001-01-01T00:00:00Z"})
    };
    held_by(&namespace, "twice", "never-was", 5000).await?;
    let twins = json!({"status": {"waiters": [waiter("s-1"), waiter("s-2")]}});
    edit(&namespace, "twice", &twins).await?;
    // A mark that reverses text, in a lock from before the definition refused it.
    let unreadable = json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
        "metadata": {"name": "a-b-0123456789abcdef0123"}, "spec": {"resource": "a\u{202e}b"}});
    // The API server learns of the older definition a moment later.
    eventually("the unreadable lock to be created", LIMIT, async || {
        namespace.create(&unreadable).await.ok()
    })
    .await?;
    // An agent that says nonsense of itself, and is silent.
    let session = json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "LockSession",
        "metadata": {"name": "odd"}, "spec": {"pod": "p", "podUid": "u", "ttlSeconds": TTL,
            "agentVersion": "\"}\n{\\ \u{1f512}"}});
    namespace.create(&session).await?;
    held_by(&namespace, "odd", "odd", 5000).await?;

    until_free(&namespace, "odd").await?;
    eventually("all that is wrong to be said", LIMIT, async || {
        let log = operator.log();
        let stuck = log
            .lines()
            .any(|line| line.contains("reconcile failed") && line.contains("untouchable"));
        let events = namespace.events().await.ok()?;
        let unreadable = events.iter().any(|event| event["reason"] == "Unreadable");
        (stuck && unreadable).then_some(())
    })
    .await?;
    let series = r#"leasehold_operator_unreadable_objects{kind="lock"}"#;
    ensure!(operator.metric(series).await? > 0.5);
    let lock = namespace.lock("untouchable").await?.unwrap_or_default();
    ensure!(
        lock["status"]["lease"]["id"] == "untouchable-grant",
        "{lock}"
    );
    let twin = eventually(
        "the first of the twins to have the lock",
        LIMIT,
        async || {
            let lock = namespace.lock("twice").await.ok()??;
            (lock["status"]["lease"]["id"] == "twice").then_some(lock)
        },
    )
    .await?;
    ensure!(twin["status"]["holder"]["session"] == "s-1", "{twin}");
    ensure!(
        twin["status"]
            .get("waiters")
            .is_none_or(|rest| *rest == json!([])),
        "{twin}"
    );
    ensure_it_is_well(&operator).await
}
