//! `helm upgrade` replaces the operator's pods while apps hold locks and pods are created.
//!
//! No earlier release exists. So the "previous" sidecars are the same binary with another tag: an
//! upgrade leaves them unchanged, and both versions work together.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::app::{App, Log, Wanted, asking_pod};
use crate::handover::between;
use crate::harness::{Namespace, eventually};
use crate::install::Leasehold;
use crate::machine::Machine;
use crate::parts::{self, IMAGE};
use crate::pods::LIMIT;

const BEFORE: &str = "0.0.0-before";
/// The maximum number of pending pods: the namespace's quota permits more.
const AT_ONCE: usize = 4;

/// Holds one lock by a connection and one by renewals, and repeatedly acquires a third. Prints a
/// word for each answer.
const SCRIPT: &str = r#"trap 'exit 0' TERM
call /v1/locks/hold '{"resource":"held"}' &
id() { sed -n 's/.*"leaseId":"\([^"]*\)".*/\1/p'; }
status() { curl --silent --output /dev/null --write-out '%{http_code}' --request "$1" "$LEASEHOLD_URL$2"; }
lease=$(call /v1/locks/acquire '{"resource":"leased","ttlSeconds":10}' | id)
while :; do
  turn=$(call /v1/locks/acquire '{"resource":"turns","ttlSeconds":10}' | id)
  echo "renewed $(status POST /v1/locks/$lease/renew) released $(status DELETE /v1/locks/$turn)"
  sleep 0.2
done"#;
const GOOD: &str = "renewed 200 released 204";
/// The lease is over, and the release reaches the store a little later.
const GOOD_TOO: &str = "renewed 200 released 202";

#[tokio::test]
async fn helm_upgrade_loses_no_lock_and_refuses_no_pod() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let machine = leasehold.machine;
    // While its tag differs, so do the sidecars of new pods.
    tag_before(machine).await?;
    let before = format!("sidecar.image.tag={BEFORE}");
    leasehold.upgrade(&["--set", &before]).await?;
    leasehold.until_settled().await?;
    let namespace = leasehold.namespace("upgrade").await?;
    let old = machine
        .app(&namespace, "old", SCRIPT, &Wanted::default())
        .await?;
    ensure!(
        sidecar_image(&old.pod)?.ends_with(BEFORE),
        "{}",
        sidecar_image(&old.pod)?
    );
    let mut log = old.log()?;
    log.until("event: acquired").await?;
    log.until(GOOD).await?;
    let held = grant(&namespace, "held").await?;
    let operators = names(&leasehold.operators().await?);

    let began = Timestamp::now();
    let is_done = Cell::new(false);
    let upgrade = async {
        let upgraded = leasehold.upgrade(&[]).await;
        let ended = Timestamp::now();
        // The replaced pods still answer the API server for a while.
        let settled = leasehold.until_settled().await;
        is_done.set(true);
        upgraded.and(settled).map(|()| ended)
    };
    let (ended, made) = tokio::join!(upgrade, make_pods(&namespace, &is_done));
    let (ended, made) = (ended?, made?);
    let now = names(&leasehold.operators().await?);
    ensure!(
        operators.is_disjoint(&now) && now.len() == 2,
        "{operators:?} became {now:?}"
    );
    crate::tell(&format!(
        "measured: helm upgrade: operator replaced in {:?}, meanwhile {made} pods asked for and none refused",
        between(began, ended)?
    ))?;

    until_all_was_well(&mut log, ended).await?;
    ensure!(grant(&namespace, "held").await? == held, "the hold changed");
    let new = machine
        .app(&namespace, "new", "exec sleep infinity", &Wanted::default())
        .await?;
    ensure!(
        sidecar_image(&new.pod)? == IMAGE,
        "{}",
        sidecar_image(&new.pod)?
    );
    they_get_on(&old, &new).await
}

/// Tags the same image with another name.
async fn tag_before(machine: &Machine) -> Result<()> {
    let (repository, _) = IMAGE.rsplit_once(':').context("an image has a tag")?;
    let mut ctr = tokio::process::Command::from(parts::ctr(&machine.folder)?);
    let output = ctr
        .args(["images", "tag", IMAGE, &format!("{repository}:{BEFORE}")])
        .output()
        .await?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

/// Creates pods one after the other until the upgrade is done. Each must get a sidecar, and a
/// refusal is an error. While [`AT_ONCE`] of them are pending, further requests are dry runs.
async fn make_pods(namespace: &Namespace, is_done: &Cell<bool>) -> Result<u32> {
    let pods = Api::<Pod>::namespaced(namespace.client.clone(), &namespace.name);
    let mut on_their_way = VecDeque::new();
    let (mut asked_for, mut made) = (0, 0);
    while !is_done.get() {
        let name = format!("made-{asked_for}");
        let mut pod = asking_pod(&name, "exit 0", &Wanted::default());
        pod["spec"]["restartPolicy"] = json!("Never");
        let how = PostParams {
            dry_run: on_their_way.len() == AT_ONCE,
            ..PostParams::default()
        };
        let answer = pods.create(&how, &serde_json::from_value(pod)?).await;
        let answer = answer.with_context(|| format!("pod {asked_for} was refused"))?;
        sidecar_image(&serde_json::to_value(answer)?)?;
        asked_for += 1;
        if !how.dry_run {
            made += 1;
            on_their_way.push_back(name);
        }
        if let Some(first) = on_their_way.front()
            && has_succeeded(&serde_json::to_value(pods.get(first).await?)?)
        {
            on_their_way.pop_front();
        }
    }
    ensure!(asked_for > 20 && made > 1, "only {asked_for}, {made} made");
    // The created pods complete.
    for name in on_their_way {
        namespace
            .until("pod", &name, "succeeded", has_succeeded)
            .await?;
    }
    Ok(asked_for)
}

fn has_succeeded(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded"
}

fn sidecar_image(pod: &Value) -> Result<&str> {
    let containers = pod["spec"]["initContainers"]
        .as_array()
        .into_iter()
        .flatten();
    let mut sidecars = containers.filter(|one| one["name"] == "leasehold");
    let sidecar = sidecars
        .next()
        .context("a pod without a sidecar was made")?;
    sidecar["image"].as_str().context("an image")
}

/// Returns the holder of a lock, and its token.
async fn grant(namespace: &Namespace, lock: &str) -> Result<Value> {
    let lock = namespace.lock(lock).await?.context("no such lock")?;
    let status = &lock["status"];
    ensure!(!status["holder"].is_null(), "{status}");
    Ok(json!([status["holder"], status["token"]]))
}

/// Waits for five more rounds under the new operator, and asserts that no bad answer or event
/// occurred since the start.
async fn until_all_was_well(log: &mut Log, ended: Timestamp) -> Result<()> {
    eventually("five more rounds", LIMIT, async || {
        let lines = log.lines().ok()?;
        let later = lines
            .iter()
            .filter(|(at, line)| *at > ended && line == GOOD);
        (later.count() >= 5).then_some(())
    })
    .await?;
    for (at, line) in log.lines()? {
        let bad = line.starts_with("renewed") && line != GOOD && line != GOOD_TOO;
        let bad_event = ["lost", "error", "at-risk"].map(|event| format!("event: {event}"));
        ensure!(!bad && !bad_event.contains(&line), "{at}: {line}");
    }
    Ok(())
}

/// A sidecar of the previous version hands a lock to a new one, and gets it back.
async fn they_get_on(old: &App, new: &App) -> Result<()> {
    let mut token = None;
    for (has, wants) in [(old, new), (new, old)] {
        let lease = has.acquire("shared").await?.with(200)?;
        ensure!(
            lease["fencingToken"].as_u64() > token,
            "{lease}, after {token:?}"
        );
        token = lease["fencingToken"].as_u64();
        wants.acquire("shared").await?.with(409)?;
        let id = lease["leaseId"].as_str().context("a lease has an id")?;
        has.ask("DELETE", &format!("/v1/locks/{id}"), &Value::Null)
            .await?
            .with(204)?;
    }
    Ok(())
}

fn names(pods: &[Value]) -> BTreeSet<String> {
    pods.iter()
        .map(|pod| pod["metadata"]["name"].to_string())
        .collect()
}
