//! `helm uninstall` while pods hold locks, and its effect on new pods. On a separate node
//! (`all.sh`), because it removes what the other tests need.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::app::{App, KEEP, Wanted};
use crate::harness::{Namespace, eventually};
use crate::install::Leasehold;
use crate::pods::{LIMIT, app};

const TTL: Duration = Duration::from_secs(15);

#[tokio::test]
async fn pods_keep_working_without_the_release_until_a_new_one() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let (machine, namespace) = (leasehold.machine, leasehold.namespace("uninstall").await?);
    let labels = json!({"leasehold.dev/injection": "enabled"});
    let enabled = machine.namespace("enabled", &labels).await?;
    let wanted = Wanted {
        config: vec![("session-ttl", "15")],
        ..Wanted::default()
    };
    let a = machine.app(&namespace, "a", KEEP, &wanted).await?;
    let b = machine
        .app(&namespace, "b", "exec sleep infinity", &wanted)
        .await?;
    let mut log = a.log()?;
    log.until("\"acquired\":true").await?;
    let held = namespace.lock("orders").await?.context("a lock")?;

    leasehold.uninstall().await?;
    leasehold.until_settled().await?;
    ensure!(leasehold.operators().await?.is_empty());
    let gone = Timestamp::now();
    let mut turns = 0;
    while Timestamp::now() < gone + 3 * TTL {
        hand_over(&a, &b).await?;
        turns += 1;
        tokio::time::sleep(TTL / 5).await;
    }
    let renewed = |(at, line): &(Timestamp, String)| *at > gone && line.contains("validForMs");
    let renewals = log.lines()?.iter().filter(|line| renewed(line)).count();
    crate::tell(&format!(
        "measured: three TTLs after helm uninstall: {renewals} renewals, {turns} times another lock handed on"
    ))?;
    ensure!(renewals >= 10 && turns >= 3, "{renewals} {turns}");
    ensure!(
        log.find("\"code\"")?.is_none(),
        "{:?}",
        log.find("\"code\"")?
    );

    // They get no sidecar now, and are not refused.
    start(&enabled, "unasked", &json!({})).await?;
    start(&namespace, "asks", &json!({"leasehold.dev/inject": "true"})).await?;

    leasehold.install_again().await?;
    let kept = namespace.lock("orders").await?.context("a lock")?;
    ensure!(
        kept["metadata"]["uid"] == held["metadata"]["uid"],
        "another object"
    );
    ensure!(
        kept["status"]["holder"] == held["status"]["holder"],
        "{}",
        kept["status"]
    );
    ensure!(
        log.find("\"code\"")?.is_none(),
        "{:?}",
        log.find("\"code\"")?
    );
    leasehold.until_injected(&namespace).await?;
    let c = machine
        .app(&namespace, "c", "exec sleep infinity", &wanted)
        .await?;
    hand_over(&b, &c).await
}

/// One pod acquires the lock `turns`, the other one is refused, then the first one releases it. And
/// the reverse.
async fn hand_over(has: &App, wants: &App) -> Result<()> {
    for (has, wants) in [(has, wants), (wants, has)] {
        let lease = has.take("turns").await?;
        let refused = eventually("an answer", LIMIT, async || {
            let answer = wants.acquire("turns").await;
            let is_away = answer.as_ref().is_ok_and(|answer| answer.status == 503);
            (!is_away).then_some(answer)
        });
        refused.await??.with(409)?;
        has.let_go(&lease).await?;
    }
    Ok(())
}

/// Creates a pod that runs without a sidecar.
async fn start(namespace: &Namespace, name: &str, labels: &Value) -> Result<()> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [app("exec sleep infinity")]}});
    namespace.apply(&pod).await?;
    let pod = namespace.until_ready(name).await?;
    ensure!(pod["spec"]["initContainers"].is_null(), "{}", pod["spec"]);
    Ok(())
}
