//! More waiters than the lock's queue has entries.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use leasehold::protocol::queue::QUEUE_MAX;

use super::WAIT_SECONDS;
use crate::harness::{Cluster, Namespace, Sidecar, TakeOver, now};
use crate::support::{BINARY, BUSY, until_queued};

const CROWD: usize = QUEUE_MAX + 50;

async fn quiet_sidecar(namespace: &Namespace, name: String) -> Result<Sidecar> {
    let pod = namespace.pod(&name).await?;
    let launch = Sidecar::launch(BINARY, &pod).session_ttl(30);
    launch.default_log().start().await
}

#[tokio::test(flavor = "multi_thread")]
async fn more_waiters_than_the_queue_holds_are_all_served() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let _machine = BUSY.lock().await;
    let namespace = cluster.namespace("crowd").await?;
    let holder = quiet_sidecar(&namespace, "holder".to_owned()).await?;
    let first = holder.acquire_for_long("res").await?.granted()?;
    let pods: Vec<Sidecar> = stream::iter(0..CROWD)
        .map(|number| quiet_sidecar(&namespace, format!("w{number}")))
        .buffer_unordered(8)
        .try_collect()
        .await?;
    let begun = now();
    let served = pods.iter().map(async |pod| {
        let waiting = pod.wait_for("res", WAIT_SECONDS).await?;
        let lease = waiting.answer().await?.granted()?;
        pod.release_for_good(&lease.id).await?;
        anyhow::Ok(lease.token)
    });
    let release = async {
        until_queued(&namespace, "res", QUEUE_MAX).await?;
        println!("the queue is full after {:?}", now().since(begun));
        holder.release_for_good(&first.id).await
    };
    let (mut tokens, _) = futures::future::try_join(try_join_all(served), release).await?;
    println!("all served after {:?}", now().since(begun));
    tokens.sort_unstable();
    tokens.dedup();
    ensure!(
        tokens.len() == CROWD && tokens[0] > first.token,
        "{tokens:?}"
    );
    let lock = namespace.lock("res").await?.unwrap_or_default();
    ensure!(lock["status"].get("holder").is_none(), "{lock}");
    ensure!(lock["status"]["transitions"] == CROWD + 1, "{lock}");
    Ok(())
}
