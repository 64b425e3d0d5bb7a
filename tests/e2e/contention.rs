//! Many who want one lock at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;

use crate::harness::{Cluster, Sidecar, TakeOver};
use crate::support::{acquire_in_time, sidecar};

const PODS: usize = 4;
const ROUNDS: usize = 15;
const LIMIT: Duration = Duration::from_secs(60);

/// What the lock guards: it notices a second one inside, and a token that is not newer.
#[derive(Default)]
struct Guarded {
    inside: AtomicUsize,
    newest: AtomicU64,
}

impl Guarded {
    async fn visit(&self, token: u64) -> Result<()> {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst);
        ensure!(inside == 0, "{} were inside with token {token}", inside + 1);
        let before = self.newest.fetch_max(token, Ordering::SeqCst);
        ensure!(before < token, "token {token} came after {before}");
        // Time for another to come in, if one can.
        tokio::time::sleep(Duration::from_millis(3)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

async fn visits(pod: Arc<Sidecar>, guarded: Arc<Guarded>) -> Result<()> {
    for _ in 0..ROUNDS {
        let lease = acquire_in_time(&pod, "res", LIMIT).await?;
        guarded.visit(lease.token).await?;
        pod.release(&lease.id).await?.expect(204)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_try_at_once_one_is_inside_and_tokens_rise() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("contention").await?;
    let guarded = Arc::new(Guarded::default());
    let mut tasks = Vec::new();
    for number in 0..PODS {
        let pod = namespace.pod(&format!("p{number}")).await?;
        let pod = Arc::new(sidecar(&pod, 15).await?);
        // Two apps in each pod.
        for _ in 0..2 {
            tasks.push(visits(Arc::clone(&pod), Arc::clone(&guarded)));
        }
    }
    let grants = tasks.len() * ROUNDS;
    try_join_all(tasks).await?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    ensure!(lock["status"]["transitions"] == grants, "{lock}");
    ensure!(lock["status"].get("holder").is_none(), "{lock}");
    Ok(())
}
