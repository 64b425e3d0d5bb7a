//! A frozen node: no component reports anything, and only the elapsed time shows that its pods are
//! gone.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::app::{App, Log, Wanted};
use crate::handover::between;
use crate::harness::{Namespace, eventually, now};
use crate::install::Leasehold;
use crate::machine::Machine;
use crate::parts::NODE;
use crate::pods::{LIMIT, condition};

const TTL: Duration = Duration::from_secs(5);
/// Waits for the lock `orders`, and keeps it.
const WAIT: &str =
    "call /v1/locks/acquire '{\"resource\":\"orders\",\"ttlSeconds\":60,\"waitSeconds\":240}'
exec sleep infinity";

/// A kubelet and pods that are stopped, until this is undone.
struct Frozen {
    machine: &'static Machine,
    processes: Vec<Pid>,
    since: Timestamp,
}

impl Frozen {
    fn freeze(machine: &'static Machine, pods: &[&App]) -> Result<Self> {
        let mut processes = Vec::new();
        for pod in pods {
            processes.extend([pod.process("app")?, pod.process("leasehold")?]);
        }
        machine.kubelet.signal(Signal::STOP)?;
        let frozen = Self {
            machine,
            processes,
            since: Timestamp::now(),
        };
        for process in &frozen.processes {
            if let Err(error) = kill_process(*process, Signal::STOP) {
                frozen.thaw()?;
                return Err(error.into());
            }
        }
        Ok(frozen)
    }

    /// Lets everything continue: the following tests need the kubelet.
    fn thaw(&self) -> Result<()> {
        self.machine.kubelet.signal(Signal::CONT)?;
        for process in &self.processes {
            kill_process(*process, Signal::CONT)?;
        }
        Ok(())
    }
}

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
    let b = machine
        .app(&namespace, "b", WAIT, &Wanted::default())
        .await?;
    namespace.until_queued("orders").await?;
    let mut waits = b.log()?;

    let frozen = Frozen::freeze(machine, &[&a])?;
    let got = waits.until("\"acquired\":true").await;
    frozen.thaw()?;
    let took = between(frozen.since, got?.0)?;
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

/// The pod has the longest session TTL, so without the taint its lock would stay held for an hour. The
/// effect is `NoSchedule`: with `NoExecute` the waiter and the operator, on the same node, would be deleted.
#[tokio::test]
async fn taint_frees_the_locks_of_a_lost_node_at_once() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let machine = leasehold.machine;
    let namespace = leasehold.namespace("taint").await?;
    let wanted = Wanted {
        config: vec![("session-ttl", "3600")],
        ..Wanted::default()
    };
    let a = machine
        .app(&namespace, "a", "exec sleep infinity", &wanted)
        .await?;
    a.acquire("orders").await?.with(200)?;
    let deleted = machine
        .app(&namespace, "deleted", "exec sleep infinity", &wanted)
        .await?;
    deleted.acquire("bills").await?.with(200)?;
    let b = machine
        .app(&namespace, "b", WAIT, &Wanted::default())
        .await?;
    namespace.until_queued("orders").await?;
    let mut waits = b.log()?;

    let frozen = Frozen::freeze(machine, &[&a, &deleted])?;
    let freed = taint_lost_node(machine, &namespace, frozen.since, &mut waits).await;
    frozen.thaw()?;
    let untaint = "node.kubernetes.io/out-of-service-";
    let removed = namespace
        .kubectl(&["taint", "nodes", NODE, untaint])
        .await?;
    machine.until_ready().await?;
    leasehold.until_available().await?;
    let after_taint = freed?;
    removed.ok()?;
    ensure!(after_taint.as_secs_f64() < 5.0, "it took {after_taint:#}");
    let lock = namespace.lock("orders").await?;
    let lock = lock.context("the lock must be there")?;
    let incident = &lock["status"]["incidents"][0];
    ensure!(incident["kind"] == "PodEnded", "{lock}");
    let reason = incident["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("out-of-service"), "{lock}");
    Ok(())
}

/// Waits until the node is lost, and longer. Then it sets the taint. Returns the time from then until the
/// waiter has its lock.
async fn taint_lost_node(
    machine: &'static Machine,
    namespace: &Namespace,
    frozen: Timestamp,
    waits: &mut Log,
) -> Result<SignedDuration> {
    // Its session goes with it.
    let delete = ["delete", "pod", "deleted", "--force", "--grace-period=0"];
    namespace.kubectl(&delete).await?.ok()?;
    let lost = Duration::from_secs(90);
    eventually("the node to be lost", lost, async || {
        let node = machine.node().await.ok()?;
        (!condition(&node, "Ready")).then_some(())
    })
    .await?;
    crate::tell(&format!(
        "measured: node not Ready {:?} after it was frozen",
        between(frozen, Timestamp::now())?
    ))?;
    // It misses a renewal, and nothing else happens.
    let silent = now().after(Duration::from_secs(40));
    while now() < silent {
        for (name, pod) in [("orders", "a"), ("bills", "deleted")] {
            let lock = namespace.lock(name).await?;
            let lock = lock.context("the lock must be there")?;
            ensure!(lock["status"]["holder"]["pod"] == pod, "{lock}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoSchedule";
    let taint = ["taint", "nodes", NODE, taint];
    namespace.kubectl(&taint).await?.ok()?;
    let tainted = Timestamp::now();
    let (got, _) = waits.until("\"acquired\":true").await?;
    crate::tell(&format!(
        "measured: session TTL 3,600 s, node lost: next holder {:?} after it was lost, {:?} after the taint",
        between(frozen, got)?,
        between(tainted, got).unwrap_or_default()
    ))?;
    eventually("the deleted pod's lock to be free", LIMIT, async || {
        let lock = namespace.lock("bills").await.ok()??;
        lock["status"]["holder"].is_null().then_some(())
    })
    .await?;
    crate::tell(&format!(
        "measured: lock of the deleted pod seen free {:?} after the taint",
        between(tainted, Timestamp::now())?
    ))?;
    Ok(got.duration_since(tainted))
}
