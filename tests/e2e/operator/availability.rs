//! Two replicas, of which one acts: what the death, the end and the sleep of that one cost.

use anyhow::{Result, ensure};

use super::{LIMIT, TTL_SECONDS, audit_lines_of, two, until_it_stands_by};
use crate::harness::{Cluster, Namespace, Operator, Served, TakeOver, eventually, now};
use crate::support::{sidecar, until_free, until_queued};

const LEADING: &str = "leasehold_operator_leading";

async fn leads(operator: &Operator) -> Result<bool> {
    Ok(operator.metric(LEADING).await? > 0.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_hands_its_lead_over_on_sigterm() -> Result<()> {
    // No take-over in the time that the test has: the lead is handed over, or the test fails.
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let (active, standby) = two(&cluster, 120).await?;
    let namespace = cluster.namespace("ended").await?;
    let holder = sidecar(&namespace.pod("a").await?, TTL_SECONDS).await?;
    holder.acquire("res").await?.granted()?;

    let told = now();
    active.sigterm()?;
    standby.until_active().await?;
    println!(
        "measured: the standby led {:?} after SIGTERM",
        now().since(told)
    );
    ensure!(active.ended().await?.success(), "{}", active.log());
    println!(
        "measured: the other one ended {:?} after SIGTERM",
        now().since(told)
    );
    holder.kill9()?;
    until_free(&namespace, "res").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_frozen_past_its_lead_does_nothing_on_waking() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let (active, standby) = two(&cluster, 10).await?;
    let namespace = cluster.namespace("slept").await?;
    let a = sidecar(&namespace.pod("a").await?, TTL_SECONDS).await?;
    let b = sidecar(&namespace.pod("b").await?, 15).await?;
    let first = a.acquire("handed").await?.granted()?;
    a.acquire("freed").await?.granted()?;
    let waiting = b.wait_for("handed", 120).await?;
    until_queued(&namespace, "handed", 1).await?;

    // It saw the holder's last renewal, so it has something to do from a moment of its sleep on.
    a.kill9()?;
    active.freeze()?;
    let second = waiting.answer().await?.granted()?;
    ensure!(second.token > first.token);
    until_free(&namespace, "freed").await?;
    let told = eventually("both lines of the audit log", LIMIT, async || {
        Some(audit_lines_of(&namespace, &standby)).filter(|lines| lines.len() == 2)
    })
    .await?;

    let before = cluster.control_plane().served()?.len();
    active.thaw()?;
    // It has noticed all of it when it stands in the queue again, with a session of its own.
    until_it_stands_by(&cluster, &active).await?;
    ensure!(!leads(&active).await? && leads(&standby).await?);
    let came = cluster.control_plane().served()?.split_off(before);
    let foreign = |one: &&Served| {
        one.pod_uid == active.pod.uid
            && !["get", "list", "watch"].contains(&one.verb.as_str())
            && one.uri.contains(&namespace.name)
    };
    let written: Vec<&Served> = came.iter().filter(foreign).collect();
    ensure!(written.is_empty(), "{written:?}");
    ensure!(active.audit().is_empty(), "{:?}", active.audit());
    ensure!(audit_lines_of(&namespace, &standby) == told, "told twice");
    for name in ["handed", "freed"] {
        let lock = namespace.lock(name).await?.unwrap_or_default();
        let incidents = lock["status"]["incidents"].as_array().map_or(0, Vec::len);
        ensure!(incidents == 1, "{lock}");
    }
    b.renew(&second.id).await?.granted()?;
    Ok(())
}

/// In a terminating namespace no Event can be written, and an operator knows by Events what was recorded.
#[tokio::test(flavor = "multi_thread")]
async fn incident_in_a_terminating_namespace_is_recorded_once() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let (active, standby) = two(&cluster, 15).await?;
    let goes = cluster.namespace("goes").await?;
    let holder = sidecar(&goes.pod("a").await?, 3).await?;
    holder.acquire("res").await?.granted()?;
    // The deletion is not finished here: a controller would do that.
    let deletion = ["delete", "namespace", &goes.name, "--wait=false"];
    goes.kubectl(&deletion).await?.ok()?;
    holder.kill9()?;
    let one_line = async |namespace: &Namespace, operator: &Operator| {
        eventually("a line of the audit log", LIMIT, async || {
            (audit_lines_of(namespace, operator).len() == 1).then_some(())
        })
        .await
    };
    one_line(&goes, &active).await?;
    eventually("an Event about the namespace", LIMIT, async || {
        let all = [
            "get",
            "events",
            "--namespace",
            "default",
            "--output",
            "name",
        ];
        let told = goes.kubectl(&all).await.ok()?.ok().ok()?;
        told.contains("res.").then_some(())
    })
    .await?;

    active.sigterm()?;
    standby.until_active().await?;
    let stays = cluster.namespace("stays").await?;
    let holder = sidecar(&stays.pod("a").await?, 3).await?;
    holder.acquire("res").await?.granted()?;
    holder.kill9()?;
    one_line(&stays, &standby).await?;
    let again = audit_lines_of(&goes, &standby);
    ensure!(again.is_empty(), "{again:?}");
    Ok(())
}
