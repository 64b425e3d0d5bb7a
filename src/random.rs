//! The source of randomness: unique names, and the jitter of pauses.
//!
//! A port like the clock: agent and operator use no other source. So a simulation that controls
//! their clock, store and randomness controls everything they do. It decides nothing, and creates
//! no secrets.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use uuid::Uuid;

/// A source of randomness. A clone is another handle to the same source.
#[derive(Clone)]
pub struct Random(Option<Arc<Mutex<fastrand::Rng>>>);

impl Random {
    /// Returns the operating system's source for names, which must be unique in the whole cluster,
    /// and a fast one for jitter.
    #[must_use]
    pub const fn system() -> Self {
        Self(None)
    }

    /// Returns a source that repeats its values for the same seed and order of calls. For
    /// simulations only: two processes with one seed would create the same names.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self(Some(Arc::new(Mutex::new(random))))
    }

    /// Returns a unique name.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        let Some(generator) = &self.0 else {
            return Uuid::new_v4();
        };
        let bytes = generator
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .u128(..);
        uuid::Builder::from_random_bytes(bytes.to_be_bytes()).into_uuid()
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    #[must_use]
    pub fn fraction(&self) -> f64 {
        match &self.0 {
            None => fastrand::f64(),
            Some(generator) => generator
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .f64(),
        }
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = if self.0.is_some() { "seed" } else { "system" };
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
        let chances_of_seven = chances(&Random::from_seed(7));
        assert_eq!(chances_of_seven, chances(&Random::from_seed(7)));
        assert_ne!(chances_of_seven, chances(&Random::from_seed(8)));
        assert_ne!(chances_of_seven.0, chances_of_seven.1);
    }

    #[test]
    fn system_and_fixed_seed_sources_make_distinct_uuids() {
        for random in [Random::system(), Random::from_seed(1)] {
            let (one, other, _) = chances(&random);
            assert_ne!(one, other);
            assert_eq!(one.get_version(), Some(uuid::Version::Random));
        }
    }
}
