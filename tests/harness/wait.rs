//! Waiting for conditions, and the clock that tests measure by.

use std::time::Duration;

use anyhow::{Result, bail};
use leasehold::clock::{Clock, SystemClock};
use leasehold::protocol::time::Moment;

/// A limit that is no claim: only so that what would never come ends a test at last. A test that would
/// pass must not fail for the machine's speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// How long between the first looks at a condition.
const POLL: Duration = Duration::from_millis(20);
/// And between later ones: who waits for long must not keep the machine from what is waited for.
const LATER_POLL: Duration = Duration::from_millis(50);

/// Looks until `probe` gives something, for at most `limit`.
///
/// # Errors
/// When the time is up; `what` says what was waited for.
pub(crate) async fn eventually<T>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let deadline = now().after(limit);
    let mut pause = POLL;
    loop {
        if let Some(found) = probe().await {
            return Ok(found);
        }
        if now() >= deadline {
            bail!("waited {limit:?} in vain for this: {what}");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 5 / 4).min(LATER_POLL);
    }
}

/// The machine's clock, the one that agents count on.
pub(crate) fn now() -> Moment {
    SystemClock.now()
}
