//! A pod that is deleted hands its locks to whoever waits, and not before its app has stopped.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use serde_json::json;

use crate::app::{App, Log, Wanted};
use crate::harness::Namespace;
use crate::install::Leasehold;

const TAKE: &str = "call /v1/locks/acquire '{\"resource\":\"orders\",\"ttlSeconds\":60}'\n";
const WAIT: &str =
    "call /v1/locks/acquire '{\"resource\":\"orders\",\"ttlSeconds\":60,\"waitSeconds\":240}'
exec sleep infinity";

/// From one moment to a later one.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Result<Duration> {
    Ok(to.duration_since(from).try_into()?)
}

/// A pod that has the lock `orders` and goes on with a script, and one that waits for it; and what both say.
async fn holder_and_waiter(
    leasehold: &'static Leasehold,
    namespace: &Namespace,
    goes_on: &str,
    wanted: &Wanted,
) -> Result<(App, Log, Log)> {
    let machine = leasehold.machine;
    let script = format!("{TAKE}{goes_on}");
    let a = machine.app(namespace, "a", &script, wanted).await?;
    let mut holds = a.log()?;
    holds.until("\"acquired\":true").await?;
    let b = machine
        .app(namespace, "b", WAIT, &Wanted::default())
        .await?;
    let waits = b.log()?;
    namespace.until_queued("orders").await?;
    Ok((a, holds, waits))
}

#[tokio::test]
async fn kubectl_delete_hands_over_after_the_app_has_stopped() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("delete").await?;
    // Its last work takes two seconds, in which the lock must not be another's.
    let script = "trap 'sleep 2; echo stopped; exit 0' TERM
while :; do sleep 0.1; done";
    let (_a, mut holds, mut waits) =
        holder_and_waiter(leasehold, &namespace, script, &Wanted::default()).await?;

    namespace
        .kubectl(&["delete", "pod", "a", "--wait=false"])
        .await?
        .ok()?;
    let (got, _) = waits.until("\"acquired\":true").await?;
    let (stopped, _) = holds.until("stopped").await?;
    ensure!(
        got > stopped,
        "the app stopped at {stopped}, the next one had it at {got}"
    );
    let took = between(stopped, got)?;
    crate::tell(&format!(
        "measured: kubectl delete: handed over {took:?} after the app had stopped"
    ))?;
    ensure!(took < Duration::from_secs(1), "it took {took:?}");
    Ok(())
}

#[tokio::test]
async fn an_app_that_ignores_sigterm_hands_over_when_it_is_killed() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let namespace = leasehold.namespace("delete").await?;
    let script = "trap '' TERM
while :; do echo alive; sleep 0.05; done";
    let wanted = Wanted {
        spec: json!({"terminationGracePeriodSeconds": 4}),
        ..Wanted::default()
    };
    let (_a, mut holds, mut waits) =
        holder_and_waiter(leasehold, &namespace, script, &wanted).await?;

    namespace
        .kubectl(&["delete", "pod", "a", "--wait=false"])
        .await?
        .ok()?;
    let (got, _) = waits.until("\"acquired\":true").await?;
    let lines = holds.lines()?;
    let killed = lines
        .iter()
        .rev()
        .find(|(_, line)| line == "alive")
        .map(|(at, _)| *at);
    let killed = killed.unwrap_or(got);
    ensure!(
        got > killed,
        "the app was alive at {killed}, the next one had it at {got}"
    );
    let took = between(killed, got)?;
    crate::tell(&format!(
        "measured: ignored SIGTERM: handed over {took:?} after SIGKILL"
    ))?;
    ensure!(took < Duration::from_secs(2), "it took {took:?}");
    Ok(())
}
