//! The seed of a test with random inputs. It is the same in each run, so that a failure is due to a
//! change and not to chance, unless `LEASEHOLD_SEED` sets another one.

/// The default seed.
const SEED: u64 = 1;

/// Returns the given seed, or with `new` a random one. It is printed, so that a failure shows it.
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("LEASEHOLD_SEED").as_deref() {
        Err(_) => SEED,
        Ok("new") => fastrand::u64(..),
        Ok(given) => given.parse().expect("a number, or `new`"),
    };
    println!("LEASEHOLD_SEED={seed}");
    seed
}
