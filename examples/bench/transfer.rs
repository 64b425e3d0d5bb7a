//! A transfer from one pod to another: one sidecar releases the lock, and another one gets it for a
//! caller that waits in a long poll.
//!
//! It is compared with the cheapest possible transfer through the API server: one write of a
//! status, and the event of a watch like the one that each agent has.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt as _;
use leasehold::k8s::{K8sLockStore, connect};
use leasehold::protocol::ids::Resource;
use leasehold::store::{LockEvent, LockStore, LockWatch};
use serde_json::json;

use crate::harness::{Namespace, Sidecar, now};
use crate::rows::Rows;
use crate::written::{Claiming, Written};

/// What happens before a measured call, on both sides of a comparison. A machine that idles, even
/// for milliseconds, is slow to wake: this affects the durations, and the ratio of two durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// Consecutive reads: only the watches have to wake.
    Reads,
    /// No work, as is usual where a lock is held for a long time.
    Idle,
}

/// The baseline of a transfer.
pub(crate) const PUT_AND_EVENT: &str = "status PUT, bare, and its watch event";
/// From the release call at one sidecar to the waiter's answer at the other.
pub(crate) const TRANSFER: &str = "transfer: release to waiter's answer";
/// The same as [`PUT_AND_EVENT`], on an idle machine.
pub(crate) const PUT_AND_EVENT_IDLE: &str = "PUT and event, after 5 ms without work";
/// The same as [`TRANSFER`], on an idle machine.
pub(crate) const TRANSFER_IDLE: &str = "transfer, after 5 ms without work";

/// The rows after reads.
pub(crate) const ROWS: &[&str] = &[PUT_AND_EVENT, TRANSFER];
/// The rows on an idle machine.
pub(crate) const ROWS_IDLE: &[&str] = &[PUT_AND_EVENT_IDLE, TRANSFER_IDLE];

impl Before {
    /// Waits for this time, with reads or idle.
    async fn pass(self, time: Duration, store: &K8sLockStore, resource: &Resource) -> Result<()> {
        let until = now().after(time);
        if self == Self::Idle {
            tokio::time::sleep(time).await;
        }
        while now() < until {
            store.get(resource).await?;
        }
        Ok(())
    }

    const fn put_and_event(self) -> &'static str {
        match self {
            Self::Reads => PUT_AND_EVENT,
            Self::Idle => PUT_AND_EVENT_IDLE,
        }
    }

    const fn transfer(self) -> &'static str {
        match self {
            Self::Reads => TRANSFER,
            Self::Idle => TRANSFER_IDLE,
        }
    }
}

const RESOURCE: &str = "bench:transfer";
/// The pause between two polls of a queue.
const POLL: Duration = Duration::from_millis(2);
/// The time before a measurement. It is long enough for the holder's watch to deliver the waiter,
/// as in production.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// An administrator that writes to a held lock, and watches the locks of its holder's session.
pub(crate) struct Watched {
    written: Written,
    events: LockWatch,
}

impl Watched {
    pub(crate) async fn new(namespace: &Namespace) -> Result<Self> {
        let config = namespace.cluster.control_plane().admin().config().await?;
        let mut written = Written::new(&config, &namespace.name, "bench-event").await?;
        let claiming = Claiming::new("nobody", "no-uid", written.stored.version);
        written.put(&claiming.take(&written.stored)?).await?;
        // It has its own client, like a waiter's agent.
        let watcher = K8sLockStore::new(connect(&config)?, &namespace.name);
        let session = claiming.session();
        let events = watcher.watch(session, written.stored.version).await?;
        Ok(Self { written, events })
    }

    /// Measures a PUT that changes a counter, until its watch event.
    pub(crate) async fn put(&mut self, before: Before, rows: &mut Rows) -> Result<()> {
        let Written { store, stored } = &self.written;
        before.pass(PAUSE, store, &stored.value.resource).await?;
        let mut next = self.written.stored.value.clone();
        next.transitions += 1;
        let start = now();
        let told = async {
            while let Some(event) = self.events.next().await {
                if matches!(event?, LockEvent::Held(lock) if lock.value == next) {
                    return Ok(now());
                }
            }
            anyhow::bail!("the bench's own watch ended")
        };
        let ((), told) = tokio::try_join!(self.written.put(&next), told)?;
        rows.add(before.put_and_event(), told.since(start));
        Ok(())
    }
}

/// Two sidecars that hand a lock over to each other.
pub(crate) struct Pair {
    holder: Sidecar,
    waiter: Sidecar,
    lease: String,
    queue: Queue,
}

impl Pair {
    pub(crate) async fn new(binary: &str, namespace: &Namespace) -> Result<Self> {
        let pods = (namespace.pod("a").await?, namespace.pod("b").await?);
        let holder = Sidecar::launch(binary, &pods.0)
            .default_log()
            .start()
            .await?;
        let waiter = Sidecar::launch(binary, &pods.1)
            .default_log()
            .start()
            .await?;
        let lease = holder.acquire(RESOURCE).await?.granted()?;
        Ok(Self {
            holder,
            waiter,
            lease: lease.id,
            queue: Queue::new(namespace, RESOURCE).await?,
        })
    }

    /// Hands the lock over, and adds the duration to the rows.
    pub(crate) async fn transfer(&mut self, before: Before, rows: &mut Rows) -> Result<()> {
        rows.add(before.transfer(), self.hand_over(before).await?);
        Ok(())
    }

    /// Hands the lock over, and returns the duration.
    pub(crate) async fn hand_over(&mut self, before: Before) -> Result<Duration> {
        let release = async { self.holder.release(&self.lease).await?.expect(204) };
        let wait = wait(&self.waiter, RESOURCE);
        let (lease, took) = handed_over(&self.queue, (before, PAUSE), wait, release).await?;
        self.lease = lease;
        std::mem::swap(&mut self.holder, &mut self.waiter);
        Ok(took)
    }
}

/// Waits in the queue, and returns the id of the lease.
pub(crate) async fn wait(sidecar: &Sidecar, resource: &str) -> Result<String> {
    let body = json!({"resource": resource, "ownerId": sidecar.pod.name, "ttlSeconds": 60,
        "waitSeconds": 60});
    Ok(sidecar.acquire_with(&body).await?.granted()?.id)
}

/// Runs `wait`, a waiter. Once it has been queued for the given time, runs `go`, which ends the
/// holder. Returns the result of `wait`, and how long after the start of `go` it came.
pub(crate) async fn handed_over<W, G>(
    queue: &Queue,
    before: (Before, Duration),
    wait: impl Future<Output = Result<W>>,
    go: impl Future<Output = Result<G>>,
) -> Result<(W, Duration)> {
    let wait = async { anyhow::Ok((wait.await?, now())) };
    let go = async {
        queue.until_somebody_waits().await?;
        let (before, time) = before;
        before.pass(time, &queue.store, &queue.resource).await?;
        let start = now();
        go.await?;
        Ok(start)
    };
    let ((got, end), start) = tokio::try_join!(wait, go)?;
    Ok((got, end.since(start)))
}

/// The queue of a lock, read as an administrator.
pub(crate) struct Queue {
    store: K8sLockStore,
    resource: Resource,
}

impl Queue {
    pub(crate) async fn new(namespace: &Namespace, resource: &str) -> Result<Self> {
        let config = namespace.cluster.control_plane().admin().config().await?;
        Ok(Self {
            store: K8sLockStore::new(connect(&config)?, &namespace.name),
            resource: Resource::parse(resource)?,
        })
    }

    async fn until_somebody_waits(&self) -> Result<()> {
        loop {
            let lock = self.store.get(&self.resource).await?;
            let lock = lock.context("a held lock must exist")?;
            if !lock.value.waiters.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }
}
