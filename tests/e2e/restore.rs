//! A restored backup: as the runbook advises, and as it advises not to.

use std::time::Duration;

use anyhow::{Result, ensure};
use reqwest::Method;
use serde_json::Value;

use crate::harness::{Cluster, Lease, PATIENCE, Sidecar, TakeOver, eventually};
use crate::support::{sidecar, until_lost};

/// What the runbook gives to `--bump-revision`.
const BUMP: u64 = 1_000_000_000;
const LIMIT: Duration = PATIENCE;

/// Takes and releases a lock; gives the token.
async fn token(sidecar: &Sidecar, resource: &str) -> Result<u64> {
    let lease = sidecar.acquire(resource).await?.granted()?;
    sidecar.release_for_good(&lease.id).await?;
    Ok(lease.token)
}

/// A lease, when the sidecar has found its way back to the API server.
async fn lease_in_time(sidecar: &Sidecar, resource: &str) -> Result<Lease> {
    let what = format!("a lease of {resource} for pod {}", sidecar.pod.name);
    eventually(&what, LIMIT, async || {
        sidecar.acquire(resource).await.ok()?.granted().ok()
    })
    .await
}

/// The same, released; gives the token.
async fn token_in_time(sidecar: &Sidecar, resource: &str) -> Result<u64> {
    let lease = lease_in_time(sidecar, resource).await?;
    sidecar.release_for_good(&lease.id).await?;
    Ok(lease.token)
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_granted_after_the_backup_are_never_repeated() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("bumped").await?;
    // Its session is in the backup, and it observes nothing of what comes after.
    let running = sidecar(&namespace.pod("running").await?, 120).await?;
    let busy = sidecar(&namespace.pod("busy").await?, 120).await?;
    token(&busy, "res").await?;
    token(&busy, "other").await?;
    let held = running.acquire("held").await?.granted()?;
    let listing = |next: &str| format!("/v1/locks?limit=1&continue={next}");
    let page = busy
        .call(Method::GET, &listing(""), None)
        .await?
        .expect(200)?;
    let next = page.json["continue"].as_str().unwrap_or_default();
    busy.call(Method::GET, &listing(next), None)
        .await?
        .expect(200)?;

    let snapshot = cluster.control_plane().snapshot_etcd("bumped").await?;
    let mut last = 0;
    for _ in 0..20 {
        last = token(&busy, "res").await?;
    }
    let last_other = token(&busy, "other").await?;
    cluster
        .control_plane()
        .restore_etcd(&snapshot, Some(BUMP))
        .await?;

    // The restored object is at a revision from before those tokens: what a naive scheme would
    // make of it and of the next few writes is among them.
    let lock = namespace.lock("res").await?.unwrap_or_default();
    let version: u64 = lock["metadata"]["resourceVersion"]
        .as_str()
        .unwrap_or("0")
        .parse()?;
    ensure!(version * 1000 < last, "{version} against {last}");

    let again = token_in_time(&running, "res").await?;
    // A backup may have forgotten any grant, so an agent releases what it holds in the step that reveals the jump,
    // also what this one kept: nothing is waited for.
    let given_up = running.get(&held.id).await?.problem(410, "lease_lost")?;
    ensure!(given_up.json["reason"] == "store_restored", "{given_up:?}");
    ensure!(
        again > last,
        "{again} after {last}, by an agent that had not seen the tokens between"
    );
    // The one that saw the later writes, and one that saw nothing at all.
    let by_busy = token_in_time(&busy, "res").await?;
    ensure!(by_busy > again, "{by_busy} after {again}");
    let fresh = sidecar(&namespace.pod("fresh").await?, 15).await?;
    let by_fresh = token_in_time(&fresh, "other").await?;
    ensure!(by_fresh > last_other, "{by_fresh} after {last_other}");

    // The revision of that listing is compacted away.
    let over = busy.call(Method::GET, &listing(next), None).await?;
    let over = over.problem(400, "invalid_request")?;
    let said = over.json["detail"].as_str().unwrap_or_default();
    ensure!(said.contains("list again without continue"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_missing_from_the_backup_are_lost() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("forgotten").await?;
    // Long enough to outlive the restore; it is renewed every 30 s.
    let a = sidecar(&namespace.pod("a").await?, 90).await?;
    let kept = a.acquire_for_long("kept").await?.granted()?;
    token(&a, "free").await?;
    let session = namespace.holding_session("kept").await?.unwrap_or_default();

    let snapshot = cluster.control_plane().snapshot_etcd("forgotten").await?;
    let free = a.acquire_for_long("free").await?.granted()?;
    let new = a.acquire_for_long("new").await?.granted()?;
    cluster
        .control_plane()
        .restore_etcd(&snapshot, Some(BUMP))
        .await?;

    // The store knows nothing of it, so another pod may have it; the token tells the two apart.
    let b = sidecar(&namespace.pod("b").await?, 60).await?;
    let next = lease_in_time(&b, "new").await?;
    ensure!(next.token > new.token, "{next:?} after {new:?}");
    b.verify("new", new.token)
        .await?
        .problem(409, "stale_token")?;

    // What the backup kept is lost with the rest: the agent cannot tell which it has.
    for lease in [&kept, &free, &new] {
        let lost = until_lost(&a, &lease.id, LIMIT * 2).await?;
        ensure!(lost.json["reason"] == "store_restored", "{}", lost.json);
        let released = a.release(&lease.id).await?;
        released.problem(410, "lease_lost")?;
    }
    let again = lease_in_time(&a, "free").await?;
    ensure!(again.token > free.token, "{again:?} after {free:?}");
    for verifying in [&a, &b] {
        let stale = verifying.verify("free", free.token).await?;
        stale.problem(409, "stale_token")?;
    }
    let renewed = namespace.holding_session("free").await?.unwrap_or_default();
    let name = |session: &Value| session["metadata"]["name"].clone();
    ensure!(name(&renewed) != name(&session), "{renewed}");

    // Unfinished work of the lost session leaves the other's grant alone.
    let lock = namespace.lock("new").await?.unwrap_or_default();
    ensure!(lock["status"]["token"] == next.token, "{lock}");
    b.renew(&next.id).await?.granted()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_stops_after_a_restore_without_the_bump() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("back").await?;
    let pod = namespace.pod("a").await?;
    let snapshot = cluster.control_plane().snapshot_etcd("back").await?;
    // Its session is not in the backup, so it has to start a new one, with a LIST.
    let a = sidecar(&pod, 3).await?;
    let last = token_in_time(&a, "res").await?;
    for _ in 0..20 {
        // On a busy machine it may start a new one here already.
        token_in_time(&a, "res").await?;
    }
    cluster
        .control_plane()
        .restore_etcd(&snapshot, None)
        .await?;
    let said = eventually("the agent to stop", LIMIT, async || {
        let answer = a.acquire("res").await.ok()?;
        (answer.code() == "store_went_back").then_some(answer)
    });
    assert_eq!(said.await?.status, 503);

    // The remedy: the same backup again, with the bump.
    cluster
        .control_plane()
        .restore_etcd(&snapshot, Some(BUMP))
        .await?;
    let again = token_in_time(&a, "res").await?;
    ensure!(again > last, "{again} after {last}");
    Ok(())
}
