//! A frozen node: no component reports anything, and only the elapsed time shows that its pods are
//! gone.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::app::Wanted;
use crate::handover::between;
use crate::install::Leasehold;

const TTL: Duration = Duration::from_secs(5);

#[tokio::test]
async fn frozen_node_loses_its_locks_after_one_ttl() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let machine = leasehold.machine;
    let namespace = leasehold.namespace("freeze").await?;
    let wanted = Wanted {
        config: vec![("session-ttl", "5")],
        ..Wanted::default()
    };
    let a = machine
        .app(&namespace, "a", "exec sleep infinity", &wanted)
        .await?;
    let lease = a.acquire("orders").await?.with(200)?;
    let wait =
        "call /v1/locks/acquire '{\"resource\":\"orders\",\"ttlSeconds\":60,\"waitSeconds\":240}'
exec sleep infinity";
    let b = machine
        .app(&namespace, "b", wait, &Wanted::default())
        .await?;
    namespace.until_queued("orders").await?;
    let mut waits = b.log()?;

    let (app, sidecar) = (a.process("app")?, a.process("leasehold")?);
    machine.kubelet.signal(Signal::STOP)?;
    let stopped = [app, sidecar].map(|process| kill_process(process, Signal::STOP));
    let frozen = Timestamp::now();
    let got = waits.until("\"acquired\":true").await;
    // Whatever the result, the following tests need the kubelet.
    machine.kubelet.signal(Signal::CONT)?;
    let went_on = [app, sidecar].map(|process| kill_process(process, Signal::CONT));
    for done in [stopped, went_on].concat() {
        done?;
    }
    let took = between(frozen, got?.0)?;
    crate::tell(&format!(
        "measured: frozen, TTL {TTL:?}: taken over after {took:?}"
    ))?;
    // The session may have been renewed just before, or a third of the TTL ago. Then it expires
    // after 1.05 TTL.
    ensure!(took > TTL * 6 / 10, "it took only {took:?}");
    ensure!(took < TTL * 14 / 10, "it took {took:?}");

    // The frozen app is notified of the loss when it continues.
    let id = lease["leaseId"]
        .as_str()
        .context("a lease must have an id")?;
    let path = format!("/v1/locks/{id}");
    let lost = a.ask("GET", &path, &Value::Null).await?.with(410)?;
    ensure!(lost["code"] == "lease_lost", "{lost}");
    Ok(())
}
