//! The cost of a lock for an app in one pod, through its sidecar.

use anyhow::Result;

use crate::harness::Sidecar;
use crate::rows::Rows;

/// If the sidecar wrote the lock last, one write acquires it.
pub(crate) const ACQUIRE: &str = "acquire, known lock";
/// One write releases a lock.
pub(crate) const RELEASE: &str = "release";
/// A lock that does not exist costs a read and two writes.
pub(crate) const FIRST: &str = "acquire, new lock";
/// A renewal is local: it makes no request to the API server.
pub(crate) const RENEW: &str = "renew (local)";

/// The rows that this file measures.
pub(crate) const ROWS: &[&str] = &[ACQUIRE, RELEASE, FIRST, RENEW];

/// Acquires the same lock again, renews its lease and releases it.
pub(crate) async fn known_lock(sidecar: &Sidecar, rows: &mut Rows) -> Result<()> {
    let acquire = async { sidecar.acquire("bench:known").await?.granted() };
    let lease = rows.time(ACQUIRE, acquire).await?;
    let renew = async { sidecar.renew(&lease.id).await?.expect(200) };
    rows.time(RENEW, renew).await?;
    let release = async { sidecar.release(&lease.id).await?.expect(204) };
    rows.time(RELEASE, release).await?;
    Ok(())
}

/// Acquires a new lock.
pub(crate) async fn new_lock(sidecar: &Sidecar, round: usize, rows: &mut Rows) -> Result<()> {
    let resource = format!("bench:new-{round}");
    let acquire = async { sidecar.acquire(&resource).await?.granted() };
    let lease = rows.time(FIRST, acquire).await?;
    sidecar.release(&lease.id).await?.expect(204)?;
    Ok(())
}
