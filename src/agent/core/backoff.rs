//! How long to pause before the next attempt: exponential, with jitter (Brooker, "Exponential
//! Backoff And Jitter", AWS 2015).

use std::time::Duration;

/// The bound of the first pause.
const FIRST: Duration = Duration::from_millis(50);

/// A source of randomness, which the driver lends.
pub(in crate::agent) trait Rng {
    /// Returns a number that no other call returns.
    fn id(&mut self) -> u128;
    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    fn fraction(&mut self) -> f64;
}

/// Returns a random pause after so many failed attempts; its bound doubles with each, up to
/// `longest`.
pub(in crate::agent) fn pause(rng: &mut dyn Rng, failures: u32, longest: Duration) -> Duration {
    let bound = FIRST
        .saturating_mul(1 << failures.min(16))
        .min(longest.max(FIRST));
    jittered(rng, bound)
}

/// Returns a random pause of at most `bound`, and of at least a tenth of it, so that a loop never
/// spins.
pub(in crate::agent) fn jittered(rng: &mut dyn Rng, bound: Duration) -> Duration {
    bound.mul_f64(0.1 + 0.9 * rng.fraction())
}
