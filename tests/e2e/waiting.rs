//! Waiting in the queue: an app asks once, and is answered when it has the lock.

mod expired;
mod faults;
mod hang_ups;

use anyhow::{Result, ensure};

use crate::harness::{Namespace, Served, Sidecar, TakeOver};
use crate::support::{Pair, until_queued};

/// How long the callers in these tests wait at most. All that they wait for takes less.
const WAIT_SECONDS: u64 = 120;

/// The writes that a pod made so far, as the API server counts them.
fn writes_of(namespace: &Namespace, pod: &Sidecar) -> Result<Vec<Served>> {
    let served = namespace.cluster.control_plane().served()?.into_iter();
    let is_write = |one: &Served| !["get", "list", "watch"].contains(&one.verb.as_str());
    let ours = served.filter(|one| one.pod_uid == pod.pod.uid && one.uri.contains("leasehold.dev"));
    Ok(ours.filter(is_write).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn hand_over_is_one_write_by_the_releaser() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("transfer", TakeOver::Peer, 60).await?;
    let first = a.acquire("res").await?.granted()?;
    let waiting = b.wait_for("res", WAIT_SECONDS).await?;
    until_queued(&namespace, "res", 1).await?;
    let history = namespace.follow("res").await?;
    let before = (writes_of(&namespace, &a)?, writes_of(&namespace, &b)?);

    a.release_for_good(&first.id).await?;
    let second = waiting.answer().await?.granted()?;
    let after = (writes_of(&namespace, &a)?, writes_of(&namespace, &b)?);
    let made = &after.0[before.0.len()..];
    ensure!(made.len() == 1, "{made:?}");
    let one = &made[0];
    ensure!(
        one.verb == "update" && one.uri.contains("/distributedlocks/res/status"),
        "{one:?}"
    );
    ensure!(after.1.len() == before.1.len(), "{:?}", after.1);

    let told = namespace.up_to_now(&history, "res").await?;
    ensure!(told.len() == 2, "{told:?}");
    let status = &told[1]["status"];
    ensure!(status["holder"]["pod"] == "b", "{status}");
    ensure!(status["token"] == second.token && second.token > first.token);
    let waiting = status["waiters"].as_array();
    ensure!(waiting.is_some_and(Vec::is_empty), "{status}");
    b.renew(&second.id).await?.granted()?;
    Ok(())
}
