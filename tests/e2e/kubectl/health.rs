//! Whether the plugin tells a live holder from a dead one, by the times that the API server keeps.

use anyhow::{Context, Result, ensure};
use leasehold::kubectl::world::SessionSeen;
use serde_json::Value;

use super::{row, run, why};
use crate::harness::{Namespace, PATIENCE, TakeOver, eventually};
use crate::support::{Pair, acquire_in_time};

const TTL_SECONDS: u64 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn killed_holder_expires_and_a_live_one_does_not() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("silence", TakeOver::Peer, TTL_SECONDS).await?;
    a.acquire_for_long("res").await?.granted()?;
    renewals_are_stamped(&namespace, "res").await?;
    a.kill9()?;

    let mut counted = Vec::new();
    let expired = eventually("the session to expire", PATIENCE, async || {
        let seen = why(&namespace, "res").await.ok()?;
        counted.push(seen["chain"][0]["freedInSeconds"].as_u64()?);
        (counted.last() == Some(&0)).then_some(seen)
    });
    let expired = expired.await?;
    // The API server may still have served one renewal of the killed process.
    let rises = counted.windows(2).filter(|pair| pair[0] < pair[1]);
    ensure!(rises.count() <= 1, "{counted:?}");
    ensure!(counted[0] <= TTL_SECONDS + 2, "{counted:?}");
    let session = expired["chain"][0]["session"].as_str();
    ensure!(
        session.is_some_and(|text| text.starts_with("expired")),
        "{expired}"
    );
    let listed = row(&run(&namespace, &["list"]).await?.ok()?, "res")?;
    ensure!(listed["POD"] == "a", "{listed}");
    ensure!(listed["SESSION"] == "expired", "{listed}");
    ensure!(listed["FREED-IN"] == "due", "{listed}");

    acquire_in_time(&b, "res", PATIENCE).await?;
    let listed = row(&run(&namespace, &["list"]).await?.ok()?, "res")?;
    ensure!(listed["POD"] == "b", "{listed}");
    let sessions = run(&namespace, &["sessions"]).await?.ok()?;
    row(&sessions, "revoked (Expired)").map(drop)
}

/// Fails if renewals leave the time of the session's `managedFields` as it was, or if the plugin takes the holder for
/// silent between two renewals that came in time.
pub(crate) async fn renewals_are_stamped(namespace: &Namespace, lock: &str) -> Result<()> {
    let first = renewed(namespace, lock).await?;
    let mut before = first;
    while before.count < first.count + 3 {
        let mut shown = Value::Null;
        let next = eventually("a renewal", PATIENCE, async || {
            shown = why(namespace, lock).await.ok()?;
            let next = renewed(namespace, lock).await.ok()?;
            (next.count > before.count).then_some(next)
        });
        let after = next.await?;
        let gap = after.at.duration_since(before.at).as_secs();
        ensure!(gap >= 0, "{after:?} after {before:?}");
        let session = shown["chain"][0]["session"].as_str();
        let session = session.context("a session")?;
        let is_in_time = gap <= after.ttl_seconds / 2;
        ensure!(
            !is_in_time || session.starts_with("live"),
            "{gap} s: {shown}"
        );
        before = after;
    }
    ensure!(before.at > first.at, "{before:?} after {first:?}");
    Ok(())
}

/// A session's last renewal.
#[derive(Clone, Copy, Debug)]
struct Renewed {
    count: u64,
    /// By the API server's clock, in whole seconds.
    at: jiff::Timestamp,
    ttl_seconds: i64,
}

async fn renewed(namespace: &Namespace, lock: &str) -> Result<Renewed> {
    let object = namespace.holding_session(lock).await?;
    let object = object.context("a session")?;
    let seen = SessionSeen::read(&object)?;
    Ok(Renewed {
        count: object["status"]["renewals"].as_u64().unwrap_or_default(),
        at: seen.renewed.context("a time")?,
        ttl_seconds: object["spec"]["ttlSeconds"].as_i64().context("a TTL")?,
    })
}
