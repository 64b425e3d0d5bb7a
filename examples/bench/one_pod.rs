//! What an app in one pod pays for a lock, through its sidecar.

use anyhow::Result;

use crate::harness::Sidecar;
use crate::rows::Rows;

/// A lock that the sidecar wrote last is taken by one write.
pub(crate) const ACQUIRE: &str = "acquire, known lock";
/// It is released by one write.
pub(crate) const RELEASE: &str = "release";
/// A lock that does not exist costs a read and two writes.
pub(crate) const FIRST: &str = "acquire, new lock";
/// To renew asks nobody.
pub(crate) const RENEW: &str = "renew (local)";

/// The rows of this file.
pub(crate) const ROWS: &[&str] = &[ACQUIRE, RELEASE, FIRST, RENEW];

/// Takes the same lock again, renews and releases it.
pub(crate) async fn known_lock(sidecar: &Sidecar, rows: &mut Rows) -> Result<()> {
    let acquire = async { sidecar.acquire("bench:known").await?.granted() };
    let lease = rows.time(ACQUIRE, acquire).await?;
    let renew = async { sidecar.renew(&lease.id).await?.expect(200) };
    rows.time(RENEW, renew).await?;
    let release = async { sidecar.release(&lease.id).await?.expect(204) };
    rows.time(RELEASE, release).await?;
    Ok(())
}

/// Takes a lock that nobody took before.
pub(crate) async fn new_lock(sidecar: &Sidecar, round: usize, rows: &mut Rows) -> Result<()> {
    let resource = format!("bench:new-{round}");
    let acquire = async { sidecar.acquire(&resource).await?.granted() };
    let lease = rows.time(FIRST, acquire).await?;
    sidecar.release(&lease.id).await?.expect(204)?;
    Ok(())
}
