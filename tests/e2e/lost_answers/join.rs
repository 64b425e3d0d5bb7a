//! The rows of the table that are about joining a queue behind others: a patch that no version
//! guards, so one that is late can land on whatever the lock is by then.

use std::sync::Arc;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::queue::until_all_came;
use super::row::row;
use super::{Cell, LIMIT};
use crate::harness::{Class, Cluster, Fault, Lease, LongPoll, Sidecar, eventually, now};
use crate::support::until_queued;

const WAIT_SECONDS: u64 = 120;

/// The lock is held by `b`, `c` waits for it, and what `a` sends to join goes wrong.
struct Queue {
    cell: Cell,
    b: Sidecar,
    c: Sidecar,
    held: Lease,
    ahead: LongPoll,
}

impl Queue {
    async fn start(cluster: &Arc<Cluster>, fault: Fault) -> Result<Self> {
        let cell = Cell::start(cluster, fault, 15).await?;
        let (b, c) = (cell.other(15).await?, cell.third(15).await?);
        let held = b.acquire("res").await?.granted()?;
        let ahead = c.wait_for("res", WAIT_SECONDS).await?;
        until_queued(&cell.namespace, "res", 1).await?;
        cell.inject(Class::Join);
        Ok(Self {
            cell,
            b,
            c,
            held,
            ahead,
        })
    }

    /// The API server's status for the faulty message, once it has one.
    async fn until_landed(&self) -> Result<u16> {
        landed(&self.cell).await
    }

    /// `b` and `c` have had the lock and let it go.
    async fn serve_those_ahead(self) -> Result<(Cell, Sidecar, Sidecar)> {
        self.b.release(&self.held.id).await?.expect(204)?;
        let lease = self.ahead.answer().await?.granted()?;
        ensure!(
            lease.token > self.held.token,
            "{lease:?} after {:?}",
            self.held
        );
        self.c.release(&lease.id).await?.expect(204)?;
        Ok((self.cell, self.b, self.c))
    }
}

async fn landed(cell: &Cell) -> Result<u16> {
    eventually("the message that went wrong to land", LIMIT, async || {
        let exchanges = cell.proxy.exchanges();
        let injected = exchanges.iter().find(|exchange| exchange.fault.is_some())?;
        injected.status
    })
    .await
}

/// Whether the API server does what a message asks that this befalls.
fn lands(fault: Fault) -> bool {
    !matches!(fault, Fault::RequestLost | Fault::TimeoutBefore)
}

fn pods(queue: &[Value]) -> Vec<&str> {
    let pods = queue.iter().map(|entry| entry["pod"].as_str());
    pods.map(Option::unwrap_or_default).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn join_behind_other_waiters() -> Result<()> {
    row(async |cluster, fault| {
        let queue = Queue::start(&cluster, fault).await?;
        let asked = now();
        let waiting = queue.cell.behind.wait_for("res", WAIT_SECONDS).await?;
        until_queued(&queue.cell.namespace, "res", 2).await?;
        // A late join must add no second entry.
        if lands(fault) {
            queue.until_landed().await?;
        }
        let entries = until_queued(&queue.cell.namespace, "res", 2).await?;
        ensure!(pods(&entries) == ["c", "a"], "{entries:?}");

        let (cell, ..) = queue.serve_those_ahead().await?;
        let lease = waiting.answer().await?.granted()?;
        cell.granted_once(Class::Join, &lease, 3).await?;
        cell.behind.release(&lease.id).await?.expect(204)?;
        until_all_came(asked).await;
        cell.until_free(3..=3).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn join_of_a_caller_that_hangs_up() -> Result<()> {
    row(async |cluster, fault| {
        let queue = Queue::start(&cluster, fault).await?;
        let asked = now();
        let waiting = queue.cell.behind.wait_for("res", WAIT_SECONDS).await?;
        eventually("the join to be sent", LIMIT, async || {
            (queue.cell.proxy.count(Class::Join) > 0).then_some(())
        })
        .await?;
        drop(waiting);
        if lands(fault) {
            let status = queue.until_landed().await?;
            ensure!(status == 200, "{status}");
        }
        until_all_came(asked).await;
        // No hand-over happens meanwhile: the entry is removed by its agent.
        let entries = until_queued(&queue.cell.namespace, "res", 1).await?;
        ensure!(pods(&entries) == ["c"], "{entries:?}");
        queue.cell.was_injected(Class::Join)?;

        let (cell, ..) = queue.serve_those_ahead().await?;
        cell.until_free(2..=2).await?;
        cell.behind.acquire("res").await?.granted()?;
        Ok(())
    })
    .await
}
