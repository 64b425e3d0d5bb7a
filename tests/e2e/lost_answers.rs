//! Every write of the protocol (and the reads), lost, delayed and unanswered, each way once. In every cell of the
//! table the lock is granted once, its caller knows, and a write that succeeded is not reported as an error.

mod join;
mod queue;
mod row;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::harness::{Class, Cluster, Fault, Lease, Namespace, Proxy, Sidecar, eventually, now};
use crate::support::{acquire_in_time, sidecar, until_renewed};
use row::{LATE, row};

const LIMIT: Duration = Duration::from_secs(30);

/// One cell: a namespace, and a pod behind a proxy.
struct Cell {
    namespace: Namespace,
    proxy: Proxy,
    behind: Sidecar,
    fault: Fault,
}

impl Cell {
    async fn start(cluster: &Arc<Cluster>, fault: Fault, ttl_seconds: u64) -> Result<Self> {
        let namespace = cluster.namespace("lost").await?;
        let proxy = Proxy::start(cluster).await?;
        let pod = namespace.pod("a").await?.through(&proxy.url)?;
        let behind = sidecar(&pod, ttl_seconds).await?;
        Ok(Self {
            namespace,
            proxy,
            behind,
            fault,
        })
    }

    /// The try that the fault meets is not to make a session, too: both together may take all the time
    /// that it has.
    async fn begin_session(&self) -> Result<()> {
        self.behind.acquire("other").await?.granted()?;
        Ok(())
    }

    /// Another pod, with nothing between it and the API server.
    async fn other(&self, ttl_seconds: u64) -> Result<Sidecar> {
        sidecar(&self.namespace.pod("b").await?, ttl_seconds).await
    }

    /// One more of them.
    async fn third(&self, ttl_seconds: u64) -> Result<Sidecar> {
        sidecar(&self.namespace.pod("c").await?, ttl_seconds).await
    }

    /// One message of this class goes wrong.
    fn inject(&self, class: Class) {
        self.proxy.fail(class, 1, self.fault);
    }

    /// The first message that went wrong was of this class.
    fn was_injected(&self, class: Class) -> Result<()> {
        let exchanges = self.proxy.exchanges();
        let injected = exchanges.iter().find(|exchange| exchange.fault.is_some());
        ensure!(
            injected.is_some_and(|exchange| exchange.class == class),
            "{exchanges:?}"
        );
        Ok(())
    }

    /// The fault happened, and the store has this lease's grant after `transitions` grants.
    async fn granted_once(&self, class: Class, lease: &Lease, transitions: u64) -> Result<()> {
        self.was_injected(class)?;
        let lock = self.namespace.lock("res").await?.unwrap_or_default();
        let status = &lock["status"];
        ensure!(status["holder"]["pod"] == "a", "{lock}");
        ensure!(status["token"] == lease.token, "{lease:?}: {lock}");
        ensure!(status["transitions"] == transitions, "{lock}");
        let grant = status["lease"]["id"].as_str().unwrap_or_default();
        ensure!(lease.id.starts_with(grant), "{lease:?}: {lock}");
        self.behind.renew(&lease.id).await?.granted()?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reads() -> Result<()> {
    for class in [Class::List, Class::GetLock] {
        row(async |cluster, fault| {
            let cell = Cell::start(&cluster, fault, 15).await?;
            if class == Class::GetLock {
                // Without a session the lock is read by a LIST, which returns the revision too.
                cell.begin_session().await?;
            }
            cell.inject(class);
            let lease = cell.behind.acquire("res").await?.granted()?;
            cell.granted_once(class, &lease, 1).await
        })
        .await?;
    }
    row(|cluster, fault| after_an_expired_holder(cluster, fault, Class::GetSession)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn create_session() -> Result<()> {
    row(async |cluster, fault| {
        let cell = Cell::start(&cluster, fault, 15).await?;
        cell.inject(Class::CreateSession);
        let lease = cell.behind.acquire("res").await?.granted()?;
        cell.granted_once(Class::CreateSession, &lease, 1).await?;
        ensure!(cell.namespace.all("locksessions").await?.len() == 1);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn create_lock() -> Result<()> {
    row(async |cluster, fault| {
        let cell = Cell::start(&cluster, fault, 15).await?;
        cell.begin_session().await?;
        cell.inject(Class::CreateLock);
        let lease = cell.behind.acquire("res").await?.granted()?;
        cell.granted_once(Class::CreateLock, &lease, 1).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire() -> Result<()> {
    row(async |cluster, fault| {
        let cell = Cell::start(&cluster, fault, 15).await?;
        cell.begin_session().await?;
        cell.inject(Class::Acquire);
        let lease = cell.behind.acquire("res").await?.granted()?;
        cell.granted_once(Class::Acquire, &lease, 1).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn renew() -> Result<()> {
    row(async |cluster, fault| {
        let cell = Cell::start(&cluster, fault, 6).await?;
        let lease = cell.behind.acquire("res").await?.granted()?;
        cell.inject(Class::Renew);
        // The injected one and two more: no deadline was missed on the way.
        let session = until_renewed(&cell.namespace, "res", 3).await?;
        cell.granted_once(Class::Renew, &lease, 1).await?;
        ensure!(session["status"].get("revoked").is_none(), "{session}");
        ensure!(cell.namespace.all("locksessions").await?.len() == 1);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn revoke() -> Result<()> {
    row(|cluster, fault| after_an_expired_holder(cluster, fault, Class::Revoke)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn take_over() -> Result<()> {
    row(|cluster, fault| after_an_expired_holder(cluster, fault, Class::TakeOver)).await
}

async fn after_an_expired_holder(cluster: Arc<Cluster>, fault: Fault, class: Class) -> Result<()> {
    let cell = Cell::start(&cluster, fault, 15).await?;
    let dead = cell.other(3).await?;
    let first = dead.acquire("res").await?.granted()?;
    dead.kill9()?;
    cell.begin_session().await?;
    cell.inject(class);
    let lease = acquire_in_time(&cell.behind, "res", LIMIT).await?;
    ensure!(lease.token > first.token, "{lease:?} after {first:?}");
    cell.granted_once(class, &lease, 2).await?;
    let lock = cell.namespace.lock("res").await?.unwrap_or_default();
    let incidents = lock["status"]["incidents"].as_array().map_or(0, Vec::len);
    ensure!(incidents == 1, "{lock}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn release() -> Result<()> {
    row(async |cluster, fault| {
        let cell = Cell::start(&cluster, fault, 15).await?;
        let other = cell.other(15).await?;
        let first = cell.behind.acquire("res").await?.granted()?;
        cell.inject(Class::Release);
        let asked = now();
        let answer = cell.behind.release(&first.id).await?;
        // 202 says that the store has not confirmed it yet.
        ensure!([204, 202].contains(&answer.status), "{answer:?}");

        let second = acquire_in_time(&other, "res", LIMIT).await?;
        ensure!(second.token > first.token, "{second:?} after {first:?}");
        eventually("the release to be done", LIMIT, async || {
            let again = cell.behind.release(&first.id).await.ok()?;
            (again.status == 204).then_some(())
        })
        .await?;
        // A late release must end no other grant.
        tokio::time::sleep((LATE + Duration::from_secs(1)).saturating_sub(now().since(asked)))
            .await;
        ensure!(cell.proxy.count(Class::Release) >= 1);
        let lock = cell.namespace.lock("res").await?.unwrap_or_default();
        ensure!(still_held_by(&lock, &second), "{second:?}: {lock}");
        other.renew(&second.id).await?.granted()?;
        Ok(())
    })
    .await
}

fn still_held_by(lock: &Value, lease: &Lease) -> bool {
    lock["status"]["holder"]["pod"] == "b" && lock["status"]["token"] == lease.token
}
