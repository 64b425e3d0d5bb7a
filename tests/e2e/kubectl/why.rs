//! `why` on real queues: a deadlock, and chains and queues that are none.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{contains, run, run_as, why};
use crate::harness::{Namespace, Operator, Sidecar, TakeOver};
use crate::support::{
    audit_lines_of, complete, grant_admin_rights, sidecar, until_described, until_queued,
    with_operator,
};

const REASON: &str = "both apps wait for each other, INC-4711";

/// Starts sidecars in pods of these names.
async fn sidecars<const N: usize>(namespace: &Namespace, names: [&str; N]) -> Result<[Sidecar; N]> {
    let each = names.into_iter().map(async |name| {
        let pod = namespace.pod(name).await?;
        sidecar(&pod, 60).await
    });
    let started = try_join_all(each).await?;
    started.try_into().ok().context("as many as names")
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlock_of_two_pods_is_named_and_ended_by_force() -> Result<()> {
    let (cluster, operator) = with_operator().await?;
    let namespace = cluster.namespace("deadlock").await?;
    grant_admin_rights(&namespace).await?;
    let [a, b] = sidecars(&namespace, ["a", "b"]).await?;
    let app = a.curl_hold(&json!({"resource": "orders", "ownerId": "app"}))?;
    let held = app.until("acquired").await?;
    let token = held.data["fencingToken"].as_u64().context("a token")?;
    b.acquire_for_long("stock").await?.granted()?;
    let of_a = a.wait_for_long("stock", 120).await?;
    let of_b = b.wait_for_long("orders", 120).await?;
    until_queued(&namespace, "stock", 1).await?;
    until_queued(&namespace, "orders", 1).await?;

    let said = run(&namespace, &["why", "orders", "--pod", "b"])
        .await?
        .ok()?;
    contains(
        &said,
        &[
            "Pod b waits for orders: 1st of 1",
            "orders is held by app in pod a",
            "Possible deadlock",
            "pod a holds orders and waits for stock",
            "pod b holds stock and waits for orders",
        ],
    )?;
    is_refused_without_the_verb(&namespace).await?;

    let command = ["release", "orders", "--force", "--yes", "--reason", REASON];
    let done = run_as(&namespace, "jane", &command).await?;
    contains(&done.stderr, &["orders is held by app in pod a"])?;
    contains(
        &done.ok()?,
        &["orders was released", "ForceReleased", "by jane", REASON],
    )?;
    let lost = app.until("lost").await?;
    ensure!(lost.data["reason"] == "force_released", "{lost:?}");
    let next = of_b.answer().await?.granted()?;
    ensure!(next.token > token, "{next:?}");
    is_on_record(&namespace, operator).await?;

    let why = why(&namespace, "stock").await?;
    ensure!(why["chain"][0]["queue"][0]["pod"] == "a", "{why}");
    ensure!(why["possibleDeadlock"] == json!([]), "{why}");
    drop(of_a);
    Ok(())
}

/// Neither a person without the verb nor a dry run changes anything.
async fn is_refused_without_the_verb(namespace: &Namespace) -> Result<()> {
    let state = async || {
        let lock = namespace.lock("orders").await?.context("the lock")?;
        anyhow::Ok((lock["spec"].clone(), lock["status"].clone()))
    };
    let before = state().await?;
    let asked = ["release", "orders", "--yes", "--reason", REASON];
    let forced = [&asked[..], &["--force"]].concat();
    let tried = [&forced[..], &["--dry-run", "server"]].concat();
    for command in [&asked[..], &forced, &tried] {
        let refused = run_as(namespace, "john", command).await?.refused()?;
        contains(&refused, &["john", "force-release", "leasehold-lock-admin"])?;
    }
    let passed = run_as(namespace, "jane", &tried).await?.ok()?;
    contains(&passed, &["(server dry run)"])?;
    let client = [&forced[..], &["--dry-run", "client"]].concat();
    let printed = run_as(namespace, "jane", &client).await?.ok()?;
    contains(&printed, &["mode: Force", "actor: jane"])?;
    let after = state().await?;
    ensure!(before == after, "{before:?} became {after:?}");
    Ok(())
}

/// The person and the reason are in the audit log, in the Event and in `history`.
async fn is_on_record(namespace: &Namespace, operator: &Operator) -> Result<()> {
    let events = until_described(namespace, "orders", "ForceReleased").await?;
    contains(&events.join("\n"), &["jane", REASON])?;
    let lines = audit_lines_of(namespace, operator);
    let line = lines.iter().find(|line| line["action"] == "force-release");
    let line = line.with_context(|| format!("no line: {lines:?}"))?;
    ensure!(line["actorId"] == "jane", "{line}");
    ensure!(line["reason"] == REASON, "{line}");
    let history = run(namespace, &["history", "orders", "-o", "json"]).await?;
    let history = history.json()?;
    let entries = history.as_array().context("a list")?;
    for (source, kind) in [("incident", "ForceReleased"), ("event", "ForceReleased")] {
        let entry = |one: &&Value| one["source"] == source && one["kind"] == kind;
        let entry = entries.iter().find(entry);
        ensure!(entry.is_some(), "{source} {kind} is not in {history}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn chain_of_five_pods_is_followed_and_is_no_deadlock() -> Result<()> {
    let cluster = complete(TakeOver::Peer).await?;
    let namespace = cluster.namespace("chain").await?;
    let pods = sidecars(&namespace, ["p1", "p2", "p3", "p4", "p5"]).await?;
    let locks = ["l1", "l2", "l3", "l4", "l5"];
    for (pod, lock) in pods.iter().zip(locks) {
        pod.acquire_for_long(lock).await?.granted()?;
    }
    let mut waiting = Vec::new();
    for (pod, lock) in pods.iter().zip(&locks[1..]) {
        waiting.push(pod.wait_for_long(lock, 120).await?);
        until_queued(&namespace, lock, 1).await?;
    }
    // A second entry, whose pod is elsewhere in the same chain.
    waiting.push(pods[0].wait_for_long("l5", 120).await?);
    until_queued(&namespace, "l5", 2).await?;

    let seen = why(&namespace, "l1").await?;
    let chain = seen["chain"].as_array().context("a chain")?;
    let mut held = chain.iter().map(|link| (&link["resource"], &link["pod"]));
    for (pod, lock) in pods.iter().zip(locks) {
        let link = held.any(|link| link == (&json!(lock), &json!(pod.pod.name)));
        ensure!(link, "{lock} is not in its place of {seen}");
    }
    ensure!(chain.len() == 5, "{seen}");
    ensure!(seen["possibleDeadlock"] == json!([]), "{seen}");

    let said = run(&namespace, &["why", "l5", "--pod", "p1"]).await?.ok()?;
    contains(
        &said,
        &[
            "Pod p1 waits for l5: 2nd of 2 in the queue",
            "l5 is held by pod p5",
        ],
    )?;
    ensure!(!said.contains("deadlock"), "{said}");
    Ok(())
}

/// Returns a queue, with times that can be compared: their texts have zeros at the end, or not.
fn queue(entries: &Value) -> Result<Vec<(String, String, Timestamp)>> {
    let entries = entries.as_array().context("a queue")?;
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a text");
    let parsed = entries.iter().map(|entry| {
        let queued_at = text(&entry["queuedAt"])?.parse()?;
        anyhow::Ok((text(&entry["ownerId"])?, text(&entry["pod"])?, queued_at))
    });
    parsed.collect()
}

/// The refusal of the sidecar and the explanation of the plugin agree.
#[tokio::test(flavor = "multi_thread")]
async fn refusal_of_a_queued_pod_says_what_why_says() -> Result<()> {
    let cluster = complete(TakeOver::Peer).await?;
    let namespace = cluster.namespace("refusal").await?;
    let [a, b, c, d] = sidecars(&namespace, ["a", "b", "c", "d"]).await?;
    a.acquire_for_long("report").await?.granted()?;
    let _of_b = b.wait_for_long("report", 120).await?;
    until_queued(&namespace, "report", 1).await?;
    let of_c = c.wait_for_long("report", 15).await?;
    until_queued(&namespace, "report", 2).await?;

    let tried = d.acquire_for_long("report").await?;
    let tried = tried.problem(409, "lock_held")?.json;
    let why = run(&namespace, &["why", "report", "--pod", "c", "-o", "json"]).await?;
    let why = why.json()?;
    let refused = of_c.answer().await?.problem(409, "lock_held")?.json;
    let link = &why["chain"][0];
    for refusal in [&refused, &tried] {
        for field in ["ownerId", "pod", "fencingToken"] {
            let (said, shown) = (&refusal["holder"][field], &link[field]);
            ensure!(said == shown && *said != Value::Null, "{said}\n{why}");
        }
        let detail = refusal["detail"].as_str().context("a sentence")?;
        let command = detail.split('`').nth(1).context("a command")?;
        let named = format!(
            "kubectl leasehold why report --namespace {}",
            namespace.name
        );
        ensure!(command == named, "{detail}");
    }
    ensure!(
        refused["position"] == 2 && why["pod"]["position"] == 2,
        "{refused}"
    );
    ensure!(
        queue(&refused["ahead"])? == queue(&why["pod"]["ahead"])?,
        "{refused}"
    );
    ensure!(queue(&tried["ahead"])? == queue(&link["queue"])?, "{tried}");
    // A try reads the session of the holder, which lives.
    let left = tried["takeOverAfterMs"].as_u64().context("a time")?;
    ensure!((1..=63_000).contains(&left), "{tried}");
    Ok(())
}
