//! Waiting for conditions, and the clock that tests measure by.

use std::time::Duration;

use anyhow::{Result, bail};
use leasehold::clock::{Clock, SystemClock};
use leasehold::protocol::time::Moment;

/// A limit that is not a claim: it only ends a test that would wait for ever. A test that would pass must not fail
/// because the machine is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// The pause between the first polls of a condition.
const POLL: Duration = Duration::from_millis(20);
/// And between later ones: polling must not take the machine's time.
const LATER_POLL: Duration = Duration::from_millis(50);

/// Polls until `probe` returns something, for at most `limit`.
///
/// # Errors
/// When the time is up; `what` names the condition.
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
