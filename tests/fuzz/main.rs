//! Every fuzz target for a few thousand inputs: its corpus, and mutations of it by a seed that is the same
//! each time unless `LEASEHOLD_SEED` says otherwise (`new`: one that nobody has tried, which is printed).
//! What each target is and must keep is in `targets`; `guided.rs` runs them by coverage, for longer.
//!
//! Each target is hunted a second time with a part of it replaced by a broken one, which has to be
//! found within the same number of tries: a run that finds nothing says something only then.

#![cfg(test)]

mod hunt;
mod mutate;
#[path = "../it/paused_clock.rs"]
mod paused_clock;
#[path = "../seed.rs"]
mod seed;
mod targets;

use hunt::{Hunt, Tally};
use seed::seed;
use targets::{Outcome, Target};

/// How many outcomes mutations must come to that the corpus had not, where there are many tries.
const NEW_MIN: usize = 3;

/// Hunts a target, and then its broken twin.
fn hunt(target: &Target) {
    let seed = seed();
    let whole = Hunt::of(target, seed);
    let tally = whole
        .run(target.run)
        .unwrap_or_else(|found| panic!("{found}"));
    println!("{}: {tally}", target.name);
    assert_reach(target, &tally);
    let broken = whole.run(target.broken);
    let found = broken.expect_err("the broken twin was not found out");
    println!(
        "{}: the broken twin is found out at {}",
        target.name,
        found.place()
    );
}

/// A mutator that only makes what is refused at the door, or only what was in the corpus, tests nothing.
fn assert_reach(target: &Target, tally: &Tally) {
    assert!(
        tally.taken > tally.tried / 100,
        "{}: too few are taken: {tally}",
        target.name
    );
    assert!(
        tally.refused > tally.tried / 100,
        "{}: too few are refused: {tally}",
        target.name
    );
    assert!(
        tally.new_by_mutation >= NEW_MIN.min(target.tries / 300),
        "{}: mutations came to nothing that the corpus had not: {tally}",
        target.name
    );
}

#[test]
fn annotations() {
    hunt(&targets::annotations::TARGET);
}

#[test]
fn api() {
    hunt(&targets::api::TARGET);
}

#[test]
fn cluster() {
    hunt(&targets::cluster::TARGET);
}

#[test]
fn journal() {
    hunt(&targets::journal::TARGET);
}

#[test]
fn lock() {
    hunt(&targets::lock::TARGET);
}

#[test]
fn names() {
    hunt(&targets::names::TARGET);
}

#[test]
fn quantity() {
    hunt(&targets::quantity::TARGET);
}

#[test]
fn review() {
    hunt(&targets::review::TARGET);
}

#[test]
fn session() {
    hunt(&targets::session::TARGET);
}

#[test]
fn state_file() {
    hunt(&targets::state_file::TARGET);
}

/// A fault that no input of the corpus comes to.
#[test]
fn mutation_finds_a_fault_outside_the_corpus() {
    const RUNS: u64 = 6;

    fn deep(input: &[u8]) -> Outcome {
        let outcome = (targets::lock::TARGET.run)(input);
        let lock: serde_json::Value = serde_json::from_slice(input).unwrap_or_default();
        let queue = lock["status"]["waiters"].as_array().map_or(0, Vec::len);
        let is_taken = matches!(outcome, Outcome::Taken(_));
        assert!(!(is_taken && queue > 2), "planted");
        outcome
    }
    let seed = seed();
    // One run of so few tries misses it with some seeds.
    let mut runs = (0..RUNS).map(|run| Hunt::of(&targets::lock::TARGET, seed.wrapping_add(run)));
    let found = runs.find_map(|hunt| hunt.run(deep).err());
    let found = found.expect("nobody found it");
    assert!(found.words.contains("planted"), "{found}");
}
