//! What a pod costs the API server does not grow with the locks that it holds: all of them live by
//! its one session.

use anyhow::{Context, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::harness::{Cluster, PATIENCE, Served, TakeOver, eventually};
use crate::support::{sidecar, until_renewed};

const LOCKS: usize = 200;
/// More at once would take longer on a busy machine than an acquire may.
const AT_ONCE: usize = 10;
const RENEWALS: u64 = 3;
/// One of this many spans of that many renewals has no other writes.
const SPANS: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_many_locks_writes_no_more_than_its_session() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("many").await?;
    let pod = namespace.pod("a").await?;
    let a = sidecar(&pod, 15).await?;
    let taken = stream::iter(0..LOCKS).map(async |number| {
        let resource = format!("res-{number}");
        eventually(&resource, PATIENCE, async || {
            a.acquire_for_long(&resource).await.ok()?.granted().ok()
        })
        .await
    });
    let taken = taken.buffer_unordered(AT_ONCE);
    taken.try_for_each(async |_lease| Ok(())).await?;

    let of_the_pod = || -> Result<Vec<Served>> {
        let served = cluster.control_plane().served()?.into_iter();
        Ok(served.filter(|one| one.pod_uid == pod.uid).collect())
    };
    let renewals = async |at_least| -> Result<u64> {
        let session = until_renewed(&namespace, "res-0", at_least).await?;
        session["status"]["renewals"].as_u64().context("renewals")
    };
    let is_renewal = |one: &Served| one.verb == "update" && one.uri.contains("/locksessions/");
    // A watch that was opened while all locks were taken may be on record late, or be opened again.
    let mut came = Vec::new();
    for _ in 0..SPANS {
        // Before the requests are counted here, and after them below: each is also in the session's own count, except
        // one that is under way.
        let before = renewals(1).await?;
        let known = of_the_pod()?.len();
        renewals(before + RENEWALS).await?;
        came = of_the_pod()?.split_off(known);
        let after = renewals(0).await?;
        let bound = usize::try_from(after - before)? + 1;
        if came.iter().all(is_renewal) {
            assert!(came.len() <= bound, "{came:?}");
            break;
        }
    }
    assert!(came.iter().all(is_renewal), "{came:?}");
    assert!(
        came.len() + 1 >= usize::try_from(RENEWALS)?,
        "the count must count"
    );
    assert_eq!(namespace.all("distributedlocks").await?.len(), LOCKS);
    Ok(())
}
