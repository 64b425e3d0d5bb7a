//! Reports of refused writes: the Event that `kubectl describe` shows, the right that it needs, and the policy that
//! keeps such a right from hiding an incident.

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

use crate::harness::{Answer, Namespace, PATIENCE, Sidecar, TakeOver, eventually};
use crate::support::Pair;

const ROLE: &str = "leasehold-sidecar-events";

async fn report(sidecar: &Sidecar, token: u64) -> Result<Answer> {
    let body =
        json!({"resource": "billing/close", "fencingToken": token, "guard": "orders database"});
    sidecar
        .call(Method::POST, "/v1/fencing/refusals", Some(&body))
        .await
}

/// Gives the `ServiceAccount` of the pods the right to create Events, and waits until it has an effect.
async fn allow_events(namespace: &Namespace) -> Result<()> {
    let binding = json!({"metadata": {"name": ROLE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"kind": "Group", "name": format!("system:serviceaccounts:{}", namespace.name)}]});
    let bindings = Api::<RoleBinding>::namespaced(namespace.client.clone(), &namespace.name);
    let binding = serde_json::from_value(binding)?;
    bindings.create(&PostParams::default(), &binding).await?;
    let group = format!("--as-group=system:serviceaccounts:{}", namespace.name);
    eventually("the right to create Events", PATIENCE, async || {
        let asked = [
            "auth",
            "can-i",
            "create",
            "events.events.k8s.io",
            "--as=x",
            &group,
        ];
        let answer = namespace.kubectl(&asked).await.ok()?;
        answer.success.then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_writer_is_shown_with_its_lock() -> Result<()> {
    let pair = Pair::start("refusals", TakeOver::Peer, 15).await?;
    let stale = pair.a.acquire("billing/close").await?.granted()?;
    pair.a.release(&stale.id).await?.expect(204)?;
    let current = pair.b.acquire("billing/close").await?.granted()?;

    let counted = report(&pair.a, stale.token).await?.expect(200)?.json;
    ensure!(counted["hasEvent"] == false, "{counted}");
    let detail = counted["detail"].as_str().context("no detail")?;
    let advice = "set the value sidecar.refusalEvents of the chart";
    ensure!(
        detail.contains("cannot create resource \"events\"") && detail.contains(advice),
        "{detail}"
    );

    allow_events(&pair.namespace).await?;
    let shown = report(&pair.b, stale.token).await?.expect(200)?.json;
    let expected = json!({"latestFencingToken": current.token, "hasEvent": true});
    ensure!(shown == expected, "{shown}");
    let lock = pair.namespace.all("distributedlocks").await?;
    let name = lock[0]["metadata"]["name"].as_str().context("a name")?;
    let described = pair
        .namespace
        .kubectl(&["describe", "dlock", name])
        .await?
        .ok()?;
    let words: Vec<_> = described.split_whitespace().collect();
    let message = format!(
        "leasehold.dev/sidecar a write with the fencing token {} was refused by orders database, because {} is newer: \
         its worker did not stop when it lost the lock (reported in pod b)",
        stale.token, current.token
    );
    let words = words.join(" ");
    ensure!(
        words.contains("Warning StaleWriteRefused") && words.ends_with(&message),
        "{described}"
    );

    let seen = crate::kubectl::run(&pair.namespace, &["history", name])
        .await?
        .ok()?;
    ensure!(seen.contains("StaleWriteRefused"), "{seen}");

    // A sidecar of another process repeats the report: the Event exists.
    let again = Sidecar::start(crate::support::BINARY, &pair.b.pod).await?;
    let repeated = report(&again, stale.token).await?.expect(200)?.json;
    ensure!(repeated == expected, "{repeated}");
    let events = Api::<Event>::namespaced(pair.namespace.client.clone(), &pair.namespace.name);
    let found = events.list(&ListParams::default()).await?.items;
    ensure!(found.len() == 1, "{found:?}");

    // With this right a pod could otherwise hide an incident from the audit log.
    let pod = pair.b.pod.client().await?;
    let mine = Api::<Event>::namespaced(pod, &pair.namespace.name);
    let mut forged: Value = serde_json::to_value(&found[0])?;
    forged["metadata"] = json!({"name": "forged"});
    forged["reportingController"] = "leasehold.dev/operator".into();
    let forged = serde_json::from_value(forged)?;
    let refused = mine.create(&PostParams::default(), &forged).await;
    let refused = refused
        .err()
        .context("the forged Event was accepted")?
        .to_string();
    ensure!(
        refused.contains("only the operator writes Events"),
        "{refused}"
    );
    Ok(())
}
