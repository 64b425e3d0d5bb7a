//! How many connections to the API server a sidecar opens.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;

use crate::harness::{Cluster, Namespace, Relay, Sidecar, TakeOver};
use crate::support::sidecar;

const ROUND_TRIP: Duration = Duration::from_millis(20);
const ROUNDS: usize = 10;

/// Acquires and releases a lock of its own, again and again.
async fn work(sidecar: &Sidecar, caller: usize) -> Result<()> {
    let resource = format!("work-{caller}");
    for _ in 0..ROUNDS {
        let lease = sidecar.acquire(&resource).await?.granted()?;
        sidecar.release_for_good(&lease.id).await?;
    }
    Ok(())
}

/// How many connections a new sidecar opens for this many concurrent callers.
async fn opened(cluster: &Arc<Cluster>, namespace: &Namespace, callers: usize) -> Result<usize> {
    let relay = Relay::start(cluster, ROUND_TRIP).await?;
    let pod = namespace.pod(&format!("for-{callers}")).await?;
    let sidecar = sidecar(&pod.over(&relay, cluster)?, 60).await?;
    try_join_all((0..callers).map(|caller| work(&sidecar, caller))).await?;
    Ok(relay.accepted())
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_callers_share_connections_as_one_does() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("connections").await?;
    let by_one = opened(&cluster, &namespace, 1).await?;
    let by_eight = opened(&cluster, &namespace, 8).await?;
    // One for sessions, one for all else; a call that takes too long on a busy machine costs another.
    assert!(by_one <= 4 && by_eight <= 4, "{by_one} and {by_eight}");
    Ok(())
}
