//! The rows of the table that are about the queue: joining it, leaving it, and the hand-over.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use leasehold::protocol::time::Moment;

use super::row::{LATE, row};
use super::{Cell, LIMIT, still_held_by};
use crate::harness::{Class, Cluster, Fault, eventually, now};
use crate::support::{merge_status, until_queued};

const WAIT_SECONDS: u64 = 120;

/// Whatever was late has come by now.
pub(super) async fn until_all_came(injected: Moment) {
    let slack = Duration::from_secs(1);
    tokio::time::sleep((LATE + slack).saturating_sub(now().since(injected))).await;
}

impl Cell {
    /// The lock is free after this many grants, and its queue is empty.
    pub(super) async fn until_free(&self, transitions: RangeInclusive<u64>) -> Result<()> {
        eventually("the lock to be free", LIMIT, async || {
            let lock = self.namespace.lock("res").await.ok().flatten()?;
            lock["status"].get("holder").is_none().then_some(())
        })
        .await?;
        let lock = self.namespace.lock("res").await?.unwrap_or_default();
        let status = &lock["status"];
        let granted = status["transitions"].as_u64().unwrap_or_default();
        ensure!(transitions.contains(&granted), "{lock}");
        ensure!(status.get("holder").is_none(), "{lock}");
        ensure!(status.get("waiters").is_none(), "{lock}");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_join() -> Result<()> {
    row(async |cluster, fault| {
        let cell = Cell::start(&cluster, fault, 15).await?;
        join_first(cell, fault, Class::Join).await
    })
    .await
}

/// The lock is as an older agent holds it: with no list, which the first waiter writes by compare-and-swap.
#[tokio::test(flavor = "multi_thread")]
async fn first_join_of_a_lock_without_a_list() -> Result<()> {
    row(async |cluster, fault| {
        let cell = Cell::start(&cluster, fault, 15).await?;
        join_first(cell, fault, Class::Enqueue).await
    })
    .await
}

async fn join_first(cell: Cell, fault: Fault, class: Class) -> Result<()> {
    let other = cell.other(15).await?;
    let first = other.acquire("res").await?.granted()?;
    if class == Class::Enqueue {
        merge_status(&cell.namespace, "res", r#"{"status":{"waiters":null}}"#).await?;
    }
    cell.inject(class);
    let asked = now();
    let waiting = cell.behind.wait_for("res", WAIT_SECONDS).await?;
    until_queued(&cell.namespace, "res", 1).await?;
    // A late join must add no second entry.
    if fault == Fault::RequestLate(LATE) {
        until_all_came(asked).await;
        until_queued(&cell.namespace, "res", 1).await?;
    }
    other.release(&first.id).await?.expect(204)?;
    let lease = waiting.answer().await?.granted()?;
    ensure!(lease.token > first.token, "{lease:?} after {first:?}");
    cell.granted_once(class, &lease, 2).await?;
    cell.behind.release(&lease.id).await?.expect(204)?;
    until_all_came(asked).await;
    cell.until_free(2..=2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn hand_over() -> Result<()> {
    row(async |cluster, fault| {
        let cell = Cell::start(&cluster, fault, 15).await?;
        let other = cell.other(15).await?;
        let first = cell.behind.acquire("res").await?.granted()?;
        let waiting = other.wait_for("res", WAIT_SECONDS).await?;
        until_queued(&cell.namespace, "res", 1).await?;
        cell.inject(Class::HandOver);
        let asked = now();
        let answer = cell.behind.release(&first.id).await?;
        // 202 says that the store has not confirmed it yet.
        ensure!([204, 202].contains(&answer.status), "{answer:?}");

        let second = waiting.answer().await?.granted()?;
        ensure!(second.token > first.token, "{second:?} after {first:?}");
        eventually("the release to be done", LIMIT, async || {
            let again = cell.behind.release(&first.id).await.ok()?;
            (again.status == 204).then_some(())
        })
        .await?;
        cell.was_injected(Class::HandOver)?;
        // A late write must end no other grant.
        until_all_came(asked).await;
        let lock = cell.namespace.lock("res").await?.unwrap_or_default();
        ensure!(still_held_by(&lock, &second), "{second:?}: {lock}");
        ensure!(lock["status"]["transitions"] == 2, "{lock}");
        other.renew(&second.id).await?.granted()?;
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn dequeue() -> Result<()> {
    row(async |cluster, fault| {
        let cell = Cell::start(&cluster, fault, 15).await?;
        let other = cell.other(15).await?;
        let first = other.acquire("res").await?.granted()?;
        let waiting = cell.behind.wait_for("res", WAIT_SECONDS).await?;
        until_queued(&cell.namespace, "res", 1).await?;
        cell.inject(Class::Dequeue);
        let asked = now();
        drop(waiting);
        until_queued(&cell.namespace, "res", 0).await?;
        cell.was_injected(Class::Dequeue)?;
        until_all_came(asked).await;

        // The holder received no answer, and the entry is free for the next caller of that pod.
        other.renew(&first.id).await?.granted()?;
        let again = cell.behind.wait_for("res", WAIT_SECONDS).await?;
        until_queued(&cell.namespace, "res", 1).await?;
        other.release(&first.id).await?.expect(204)?;
        let lease = again.answer().await?.granted()?;
        cell.granted_once(Class::Dequeue, &lease, 2).await?;
        cell.behind.release(&lease.id).await?.expect(204)?;
        cell.until_free(2..=2).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn dequeue_that_a_hand_over_may_outrun() -> Result<()> {
    row(outrun_dequeue).await
}

/// The holder releases while it is unknown whether its waiter has left.
async fn outrun_dequeue(cluster: Arc<Cluster>, fault: Fault) -> Result<()> {
    let cell = Cell::start(&cluster, fault, 15).await?;
    let other = cell.other(15).await?;
    let first = other.acquire("res").await?.granted()?;
    let waiting = cell.behind.wait_for("res", WAIT_SECONDS).await?;
    until_queued(&cell.namespace, "res", 1).await?;
    cell.inject(Class::Dequeue);
    let asked = now();
    drop(waiting);
    eventually("the dequeue to be sent", LIMIT, async || {
        (cell.proxy.count(Class::Dequeue) > 0).then_some(())
    })
    .await?;
    other.release(&first.id).await?.expect(204)?;
    cell.was_injected(Class::Dequeue)?;
    // A grant without a caller is counted, and released.
    cell.until_free(1..=2).await?;
    until_all_came(asked).await;
    cell.until_free(1..=2).await?;
    let lease = cell.behind.acquire("res").await?.granted()?;
    ensure!(lease.token > first.token, "{lease:?} after {first:?}");
    Ok(())
}
