//! Runs every fuzz target on a few thousand inputs: its corpus, and seeded mutations of it. The
//! seed is the same each time unless `LEASEHOLD_SEED` sets another (`new`: a random one, which is
//! printed). `targets` describes each target and what it asserts. `guided.rs` runs the targets by
//! coverage, for longer.
//!
//! Each target runs a second time with a part of it replaced by a broken one. The run has to detect
//! that within the same number of tries: only then does a run without findings mean anything.

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

/// The minimum number of new outcomes that mutations must reach, if there are many tries.
const NEW_MIN: usize = 3;

/// Runs a target, and then its broken variant.
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

/// A mutator whose inputs are all refused early, or all similar to the corpus, tests nothing.
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
        "{}: mutations have no outcome that the corpus lacks: {tally}",
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

/// A fault that no input of the corpus reaches.
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
    // With some seeds, one run with so few tries misses it.
    let mut runs = (0..RUNS).map(|run| Hunt::of(&targets::lock::TARGET, seed.wrapping_add(run)));
    let found = runs.find_map(|hunt| hunt.run(deep).err());
    let found = found.expect("not found");
    assert!(found.words.contains("planted"), "{found}");
}
