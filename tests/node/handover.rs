//! A pod that is deleted hands its locks to whoever waits, and not before its app has stopped.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::json;

use crate::app::{App, Log, Wanted};
use crate::harness::Namespace;
use crate::install::Leasehold;

/// What a script says of itself ends with the machine's time: the log's own is from when it was read, which
/// may be later than what another one said after it.
const NOW: &str = "now() { cut -d' ' -f1 /proc/uptime; }\n";
const TAKE: &str = "call /v1/locks/acquire '{\"resource\":\"orders\",\"ttlSeconds\":60}'\n";
const WAIT: &str =
    "call /v1/locks/acquire '{\"resource\":\"orders\",\"ttlSeconds\":60,\"waitSeconds\":240}'
echo \"had $(now)\"
exec sleep infinity";

/// From one moment to a later one.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Result<Duration> {
    Ok(to.duration_since(from).try_into()?)
}

/// When a line was said, by itself, since the machine started.
fn said_at(line: &str) -> Result<Duration> {
    let (_, seconds) = line.rsplit_once(' ').context("it must end with a time")?;
    Ok(Duration::try_from_secs_f64(seconds.parse()?)?)
}

/// How long after its former holder's last word the next one had the lock.
fn handed_over(last_word: &str, had: &str) -> Result<Duration> {
    let passed = said_at(had)?.checked_sub(said_at(last_word)?);
    passed.with_context(|| format!("the app said {last_word:?}, the next one {had:?}"))
}

/// A pod that has the lock `orders` and goes on with a script, and one that waits for it; and what both say.
async fn holder_and_waiter(
    leasehold: &'static Leasehold,
    namespace: &Namespace,
    goes_on: &str,
    wanted: &Wanted,
) -> Result<(App, Log, Log)> {
    let machine = leasehold.machine;
    let script = format!("{NOW}{TAKE}{goes_on}");
    let a = machine.app(namespace, "a", &script, wanted).await?;
    let mut holds = a.log()?;
    holds.until("\"acquired\":true").await?;
    let b = machine
        .app(namespace, "b", &format!("{NOW}{WAIT}"), &Wanted::default())
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
    let script = "trap 'sleep 2; echo \"stopped $(now)\"; exit 0' TERM
while :; do sleep 0.1; done";
    let (_a, mut holds, mut waits) =
        holder_and_waiter(leasehold, &namespace, script, &Wanted::default()).await?;

    namespace
        .kubectl(&["delete", "pod", "a", "--wait=false"])
        .await?
        .ok()?;
    let (_, had) = waits.until("had ").await?;
    let (_, stopped) = holds.until("stopped ").await?;
    let took = handed_over(&stopped, &had)?;
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
while :; do echo \"alive $(now)\"; sleep 0.05; done";
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
    let (_, had) = waits.until("had ").await?;
    // Until then its last words may not be in its log.
    let gone = ["wait", "--for=delete", "pod/a", "--timeout=60s"];
    namespace.kubectl(&gone).await?.ok()?;
    let lines = holds.lines()?;
    let mut words = lines.iter().rev().map(|(_, line)| line);
    let alive = words.find(|line| line.starts_with("alive "));
    let took = handed_over(alive.context("it must have said that it is alive")?, &had)?;
    crate::tell(&format!(
        "measured: ignored SIGTERM: handed over {took:?} after SIGKILL"
    ))?;
    ensure!(took < Duration::from_secs(2), "it took {took:?}");
    Ok(())
}
