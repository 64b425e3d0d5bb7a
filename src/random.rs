//! Where chance comes from: names that nobody else has, and the jitter of pauses.
//!
//! A port beside the clock: agent and operator ask nobody else, so that a simulation that owns their
//! clock, their store and this owns everything they do. It decides nothing, and it makes no secrets.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

/// A source of chance. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Random(Option<Arc<Mutex<fastrand::Rng>>>);

impl Random {
    /// The operating system's for names, which must differ in the whole cluster, and a fast one for
    /// jitter.
    #[must_use]
    pub const fn system() -> Self {
        Self(None)
    }

    /// The same chances for the same seed, each time that it is asked in the same order. For
    /// simulations only: two processes with one seed would make the same names.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self(Some(Arc::new(Mutex::new(random))))
    }

    /// A name that nobody else has.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        let Some(seeded) = &self.0 else {
            return Uuid::new_v4();
        };
        let bytes = seeded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .u128(..);
        uuid::Builder::from_random_bytes(bytes.to_be_bytes()).into_uuid()
    }

    /// A number from 0 up to, but not, 1.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        match &self.0 {
            None => fastrand::f64(),
            Some(seeded) => seeded.lock().unwrap_or_else(PoisonError::into_inner).f64(),
        }
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = if self.0.is_some() { "seeded" } else { "system" };
        f.debug_tuple("Random").field(&source).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chances(random: &Random) -> (Uuid, Uuid, u64) {
        (random.uuid(), random.uuid(), random.fraction().to_bits())
    }

    #[test]
    fn equal_seeds_give_equal_values_and_others_differ() {
        let chances_of_seven = chances(&Random::seeded(7));
        assert_eq!(chances_of_seven, chances(&Random::seeded(7)));
        assert_ne!(chances_of_seven, chances(&Random::seeded(8)));
        assert_ne!(chances_of_seven.0, chances_of_seven.1);
    }

    #[test]
    fn system_and_seeded_sources_make_distinct_random_uuids() {
        for random in [Random::system(), Random::seeded(1)] {
            let (one, other, _) = chances(&random);
            assert_ne!(one, other);
            assert_eq!(one.get_version(), Some(uuid::Version::Random));
        }
    }
}
