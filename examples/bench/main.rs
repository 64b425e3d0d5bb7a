//! `make bench`: what a lock costs, beside what the API server costs, in one run against one API
//! server.
//!
//! The machines that it runs on are shared and noisy, so it prints medians and ratios and asserts
//! nothing. The kinds of call take turns, so that noise falls on all of them alike.

#[path = "../../tests/harness.rs"]
mod harness;

mod rows;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use harness::{Cluster, Namespace, Sidecar, TakeOver};
use kube::Client;
use leasehold::k8s::K8sLockStore;
use leasehold::protocol::ids::Resource;
use leasehold::protocol::lock::Lock;
use leasehold::store::{LockStore, Stored};
use rows::Rows;

/// How often each call is measured.
const ROUNDS: usize = 500;
/// How many rounds come first and are not counted.
const WARM_UP: usize = 50;
/// The resource that is locked again and again.
const KNOWN: &str = "bench:known";

#[tokio::main]
async fn main() -> Result<()> {
    let binary = std::env::args()
        .nth(1)
        .context("usage: bench PATH-OF-LEASEHOLD; or `make bench`")?;
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("bench").await?;
    let pod = namespace.pod("bench").await?;
    let sidecar = Sidecar::launch(&binary, &pod).default_log().start().await?;
    let config = cluster.control_plane().admin().config().await?;
    let mut put = Put::new(leasehold::k8s::connect(&config)?, &namespace).await?;

    let mut rows = Rows::default();
    for round in 0..WARM_UP + ROUNDS {
        let measured = measure(&mut put, &sidecar, round).await?;
        if round >= WARM_UP {
            rows.add(measured);
        }
    }
    let size = std::fs::metadata(&binary)?.len();
    rows.print(sidecar.rss_kib()?, size);
    Ok(())
}

/// One of each, in turns.
async fn measure(
    put: &mut Put,
    sidecar: &Sidecar,
    round: usize,
) -> Result<Vec<(&'static str, Duration)>> {
    let bare = timed(put.once()).await?;
    let (acquire, lease) = timed_value(async { sidecar.acquire(KNOWN).await?.granted() }).await?;
    let renew = timed(async { sidecar.renew(&lease.id).await?.expect(200).map(drop) }).await?;
    let release = timed(async { sidecar.release(&lease.id).await?.expect(204).map(drop) }).await?;
    let (first, other) = timed_value(async {
        sidecar
            .acquire(&format!("bench:new-{round}"))
            .await?
            .granted()
    })
    .await?;
    sidecar.release(&other.id).await?.expect(204)?;
    Ok(vec![
        (rows::PUT, bare),
        (rows::ACQUIRE, acquire),
        (rows::RENEW, renew),
        (rows::RELEASE, release),
        (rows::FIRST, first),
    ])
}

/// The baseline: one PUT of a small lock's status by an administrator, as our own client does it.
struct Put {
    store: K8sLockStore,
    stored: Stored<Lock>,
}

impl Put {
    async fn new(client: Client, namespace: &Namespace) -> Result<Self> {
        let store = K8sLockStore::new(client, &namespace.name);
        let stored = store.create(&Resource::parse("bench-put")?).await?;
        Ok(Self { store, stored })
    }

    async fn once(&mut self) -> Result<()> {
        let mut next = self.stored.value.clone();
        next.transitions += 1;
        self.stored = self.store.update(&self.stored, &next).await?;
        Ok(())
    }
}

async fn timed(call: impl Future<Output = Result<()>>) -> Result<Duration> {
    timed_value(call).await.map(|(took, ())| took)
}

#[allow(
    clippy::disallowed_methods,
    reason = "a bench measures, it decides nothing by the time"
)]
async fn timed_value<T>(call: impl Future<Output = Result<T>>) -> Result<(Duration, T)> {
    let start = Instant::now();
    let value = call.await?;
    Ok((start.elapsed(), value))
}
