//! The pauses after failures.

use std::time::Duration;

use crate::random::Random;

/// The longest pause after a failure.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Returns a backoff with jitter that grows with the number of failures.
pub(super) fn backoff(failures: u32, random: &Random) -> Duration {
    let bound = Duration::from_millis(100).saturating_mul(1 << failures.min(10));
    bound
        .min(BACKOFF_MAX)
        .mul_f64(0.1 + 0.9 * random.fraction())
}
