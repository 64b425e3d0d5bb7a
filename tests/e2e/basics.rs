//! One lock between two pods: taken, refused, looked at, renewed, released, taken again.

use anyhow::Result;

use crate::harness::{Cluster, TakeOver};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_sees_the_locks_of_its_own_namespace_only() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("basics").await?;
    let pod = namespace.pod("a").await?;
    pod.kubectl(&["get", "dlock"]).await?.ok()?;
    let elsewhere = pod
        .kubectl(&["get", "dlock", "--namespace", "default"])
        .await?;
    assert!(elsewhere.refused()?.contains("cannot list resource"));
    Ok(())
}
