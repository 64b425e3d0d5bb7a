//! An idle pod costs the API server nothing.

use std::time::Duration;

use anyhow::Result;

use crate::harness::{Cluster, Served, TakeOver};
use crate::support::sidecar;

#[tokio::test(flavor = "multi_thread")]
async fn idle_sidecar_makes_no_request_in_a_minute() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("idle").await?;
    let pod = namespace.pod("a").await?;
    let of_the_pod = || -> Result<Vec<Served>> {
        let served = cluster.control_plane().served()?.into_iter();
        Ok(served.filter(|one| one.pod_uid == pod.uid).collect())
    };
    // Those of the harness itself, which checked whether the pod's rights are in effect.
    let before = of_the_pod()?;
    let a = sidecar(&pod, 15).await?;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let after = of_the_pod()?;
    assert_eq!(after.len(), before.len(), "{after:?}");

    a.acquire("res").await?.granted()?;
    assert!(
        of_the_pod()?.len() >= before.len() + 4,
        "the count must count"
    );
    Ok(())
}
