//! A caller with a `requestId` that hangs up and asks again within 10 seconds.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::WAIT_SECONDS;
use crate::harness::{PATIENCE, Sidecar, TakeOver, eventually};
use crate::support::{Pair, sidecar, until_queued};

fn named(pod: &Sidecar, id: &str) -> Value {
    json!({"resource": "res", "ownerId": pod.pod.name, "ttlSeconds": 60,
        "waitSeconds": WAIT_SECONDS, "requestId": id})
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_request_keeps_its_queue_entry() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("place", TakeOver::Peer, 30).await?;
    let c = sidecar(&namespace.pod("c").await?, 30).await?;
    let first = a.acquire("res").await?.granted()?;
    let request = named(&b, "request-1");
    let hung_up = b.wait_with(&request).await?;
    let before = until_queued(&namespace, "res", 1).await?;
    drop(hung_up);
    let later = c.wait_for("res", WAIT_SECONDS).await?;
    until_queued(&namespace, "res", 2).await?;
    let again = b.wait_with(&request).await?;
    // Another request of this pod stands behind it.
    let other = b.wait_with(&named(&b, "request-2")).await?;

    a.release_for_good(&first.id).await?;
    let lease = again.answer().await?.granted()?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    ensure!(
        lock["status"]["lease"]["id"] == before[0]["leaseId"],
        "{lock}"
    );
    // The next in this pod may go first while the others have not waited for long.
    until_queued(&namespace, "res", 2).await?;
    b.release_for_good(&lease.id).await?;
    let next = later.answer().await?.granted()?;
    ensure!(next.token > lease.token, "{next:?} after {lease:?}");
    c.release_for_good(&next.id).await?;
    let last = other.answer().await?.granted()?;
    ensure!(last.token > next.token, "{last:?} after {next:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn grant_after_a_hang_up_answers_the_repeated_request() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("replayed", TakeOver::Peer, 30).await?;
    let first = a.acquire("res").await?.granted()?;
    let request = named(&b, "request-1");
    let hung_up = b.wait_with(&request).await?;
    let place = until_queued(&namespace, "res", 1).await?;
    drop(hung_up);
    a.release_for_good(&first.id).await?;
    eventually("the agent to have the grant", PATIENCE, async || {
        let log = b.log();
        log.contains("lock acquired").then_some(())
    })
    .await?;
    let before = namespace.lock("res").await?.unwrap_or_default();
    ensure!(
        before["status"]["lease"]["id"] == place[0]["leaseId"],
        "{before}"
    );

    let answer = b.wait_with(&request).await?.answer().await?.expect(200)?;
    ensure!(answer.json["replayed"] == true, "{}", answer.json);
    let lease = answer.granted()?;
    ensure!(before["status"]["token"] == lease.token, "{before}");
    ensure!(
        namespace.lock("res").await? == Some(before),
        "no write was made"
    );
    // With another body it is another request.
    let mut another = request.clone();
    another["ttlSeconds"] = json!(7);
    b.wait_with(&another).await?.answer().await?.expect(422)?;
    b.release_for_good(&lease.id).await?;
    Ok(())
}
