//! The seed of a test with random inputs: the same in each run, so that a change is judged by what it
//! changes and not by chance, unless `LEASEHOLD_SEED` says otherwise.

/// What is tried where nobody says otherwise.
const SEED: u64 = 1;

/// The seed that was given, or with `new` one that nobody has tried. It is printed, for a failure to show.
pub(crate) fn seed() -> u64 {
    let seed = match std::env::var("LEASEHOLD_SEED").as_deref() {
        Err(_) => SEED,
        Ok("new") => fastrand::u64(..),
        Ok(given) => given.parse().expect("a number, or `new`"),
    };
    println!("LEASEHOLD_SEED={seed}");
    seed
}
