//! Waiting for conditions, and the clock that tests measure with.

use std::time::Duration;

use anyhow::{Result, bail};
use leasehold::clock::{Clock, SystemClock};
use leasehold::protocol::time::Moment;

/// A limit that asserts nothing: it only ends a test that would wait forever. A correct test must
/// not fail because the machine is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// The pause between the first polls of a condition.
const POLL: Duration = Duration::from_millis(20);
/// The maximum pause between later polls: polling must not load the machine.
const LATER_POLL: Duration = Duration::from_millis(50);

/// Polls until `probe` returns a value, for at most `limit`.
///
/// # Errors
/// Returns an error after `limit`; `what` names the condition.
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
            bail!("timed out after {limit:?} waiting for: {what}");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 5 / 4).min(LATER_POLL);
    }
}

/// Returns the time of the machine's clock, the one that agents use.
pub(crate) fn now() -> Moment {
    SystemClock.now()
}
