//! Release requests: the app receives the name and the reason of the person. When it releases, its own pod records that,
//! under the policies as they ship.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::harness::{Lease, Namespace, Proxy, Sidecar, TakeOver, eventually};
use crate::support::{Pair, audit_lines_of, sidecar, until_described, until_queued, with_operator};

const REASON: &str = "maintenance of the ledger";

/// Requests the release of the lock `res` as the README says; returns the user's name.
async fn ask(namespace: &Namespace, lease: &Value) -> Result<String> {
    let who = ["auth", "whoami", "--output", "json"];
    let who = namespace.kubectl(&who).await?.json()?;
    let actor = who["status"]["userInfo"]["username"].as_str();
    let actor = actor.context("a user name")?.to_owned();
    let request = json!({"leaseId": lease, "mode": "Ask", "reason": REASON, "actor": actor});
    let patch = json!({"spec": {"releaseRequest": request}}).to_string();
    let command = [
        "patch", "dlock", "res", "--type", "merge", "--patch", &patch,
    ];
    namespace.kubectl(&command).await?.ok()?;
    Ok(actor)
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_release_request_names_its_actor_and_is_recorded() -> Result<()> {
    for mode in [TakeOver::Strict, TakeOver::Peer] {
        let Pair { namespace, a, b } = Pair::start("asked", mode, 60).await?;
        let app = a.curl_hold(&json!({"resource": "res", "ownerId": "app"}))?;
        let held = app.until("acquired").await?;
        let lease = held.data["leaseId"].as_str().context("a lease")?;
        let waiting = b.wait_for("res", 120).await?;
        until_queued(&namespace, "res", 1).await?;
        let status = &namespace.lock("res").await?.context("the lock")?["status"];

        let actor = ask(&namespace, &status["lease"]["id"]).await?;
        let told = app.until("release-requested").await?;
        ensure!(told.data["reason"] == "person_asked", "{told:?}");
        ensure!(told.data["actor"] == actor.as_str(), "{told:?}");
        ensure!(told.data["message"] == REASON, "{told:?}");
        let later = a.curl_events(&format!("/v1/locks/{lease}/events"))?;
        later.until("release-requested").await?;
        let lock = namespace.lock("res").await?.context("the lock")?;
        ensure!(lock["status"]["holder"]["pod"] == "a", "the app decides");

        a.release(lease).await?.expect(204)?;
        ensure!(app.ended().await?.success());
        let next = waiting.answer().await?.granted()?;
        if mode == TakeOver::Strict {
            is_recorded_by_the_operator(&namespace, &actor).await?;
        }
        let yaml = ["get", "dlock", "res", "--output", "yaml"];
        let yaml = namespace.kubectl(&yaml).await?.ok()?;
        let record = yaml.lines().map(str::trim);
        let record: Vec<_> = record.map(|line| line.trim_start_matches("- ")).collect();
        for line in ["kind: ReleasedOnRequest", &format!("reason: {REASON}")] {
            ensure!(record.contains(&line), "{line} is not in {yaml}");
        }
        let lock = namespace.lock("res").await?.context("the lock")?;
        let [incident] = lock["status"]["incidents"]
            .as_array()
            .context("incidents")?
            .as_slice()
        else {
            anyhow::bail!("one incident: {lock}");
        };
        ensure!(incident["actor"] == actor.as_str(), "{incident}");
        ensure!(incident["leaseId"] == status["lease"]["id"], "{incident}");
        ensure!(incident["token"] == status["token"], "{incident}");
        ensure!(
            incident["ownerId"] == "app" && incident["pod"] == "a",
            "{incident}"
        );

        let renewed = b.renew(&next.id).await?.expect(200)?;
        ensure!(
            renewed.json.get("releaseRequested").is_none(),
            "{}",
            renewed.json
        );
        b.release_for_good(&next.id).await?;
        let lock = namespace.lock("res").await?.context("the lock")?;
        let incidents = lock["status"]["incidents"].as_array();
        ensure!(incidents.is_some_and(|i| i.len() == 1), "{lock}");
    }
    Ok(())
}

/// The operator did nothing, and records it.
async fn is_recorded_by_the_operator(namespace: &Namespace, actor: &str) -> Result<()> {
    let (_, operator) = with_operator().await?;
    let events = until_described(namespace, "res", "ReleasedOnRequest").await?;
    ensure!(
        matches!(&events[..], [event] if event.contains(actor) && event.contains(REASON)),
        "{events:?}"
    );
    // The line comes before the Event.
    let told = audit_lines_of(namespace, operator);
    let [line] = &told[..] else {
        anyhow::bail!("one line: {told:?}");
    };
    ensure!(line["action"] == "release-on-request", "{line}");
    ensure!(
        line["actorId"] == actor && line["reason"] == REASON,
        "{line}"
    );
    Ok(())
}

/// Requests the lease of an app that only renews, and waits until the app receives that.
async fn request_and_receive(
    namespace: &Namespace,
    sidecar: &Sidecar,
    lease: &Lease,
) -> Result<()> {
    // By the app's own lease id, as its log may show it.
    let actor = ask(namespace, &json!(lease.id)).await?;
    let told = eventually("it is told", Duration::from_secs(30), async || {
        let renewed = sidecar.renew(&lease.id).await.ok()?;
        renewed.json.get("releaseRequested").cloned()
    });
    let told = told.await?;
    let expected = json!({"reason": "person_asked", "actor": actor, "message": REASON});
    ensure!(told == expected, "{told}");
    Ok(())
}

/// The lock is free, and nothing is on record.
async fn is_free_without_a_record(namespace: &Namespace) -> Result<()> {
    let lock = namespace.lock("res").await?.context("the lock")?;
    let status = &lock["status"];
    ensure!(status.get("lease").is_none(), "{lock}");
    ensure!(status.get("incidents").is_none(), "{lock}");
    Ok(())
}

/// The policies want the request beside its record. The agent has not seen that it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn withdrawn_release_request_is_not_recorded() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("asked-withdrawn").await?;
    let proxy = Proxy::start(&cluster).await?;
    let pod = namespace.pod("a").await?.through(&proxy.url)?;
    let a = sidecar(&pod, 60).await?;
    let lease = a.acquire("res").await?.granted()?;
    request_and_receive(&namespace, &a, &lease).await?;
    proxy.stall_watches();
    let withdrawn = json!({"spec": {"releaseRequest": null}});
    namespace.patch("distributedlocks/res", &withdrawn).await?;
    let renewed = a.renew(&lease.id).await?.expect(200)?;
    ensure!(
        renewed.json.get("releaseRequested").is_some(),
        "it has not heard of that: {}",
        renewed.json
    );
    a.release_for_good(&lease.id).await?;
    is_free_without_a_record(&namespace).await?;
    let refused = |status| status == Some(403) || status == Some(422);
    let exchanges = proxy.exchanges();
    ensure!(!exchanges.iter().any(|exchange| refused(exchange.status)));
    Ok(())
}

/// By a custom policy, as ours refuse no true record.
#[tokio::test(flavor = "multi_thread")]
async fn lock_is_released_unrecorded_if_a_policy_refuses_the_record() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("asked-refused", TakeOver::Strict, 60).await?;
    let name = format!("no-records-in-{}", namespace.name);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": ["leasehold.dev"],
                "apiVersions": ["v1alpha1"], "operations": ["UPDATE"],
                "resources": ["distributedlocks/status"]}]},
            "matchConditions": [{"name": "here",
                "expression": format!("request.namespace == '{}'", namespace.name)}],
            "validations": [{"expression": "!object.?status.incidents.hasValue()",
                "message": "no records here"}],
        },
    });
    namespace.cluster.enforce(&policy).await?;
    let lease = a.acquire("res").await?.granted()?;
    request_and_receive(&namespace, &a, &lease).await?;
    let waiting = b.wait_for("res", 120).await?;
    until_queued(&namespace, "res", 1).await?;
    a.release_for_good(&lease.id).await?;
    ensure!(a.log().contains("releasing anyway"), "it was refused");
    let next = waiting.answer().await?.granted()?;
    ensure!(next.token > lease.token);
    b.release_for_good(&next.id).await?;
    is_free_without_a_record(&namespace).await
}
