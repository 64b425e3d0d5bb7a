//! The simulation: the shipped agents on the embedded store, behind an unreliable network, in
//! virtual time. A seed determines everything, so its number reproduces a failure.
//!
//! `SIM_SEEDS=a..b` selects seeds; `SIM_SEED=n` shows one. With `SIM_FLAW=words` other flaws are
//! ignored, for runs with a seeded bug.

#![cfg(test)]

mod admin;
mod app;
mod clock;
mod controls;
mod coverage;
mod disk;
mod faults;
mod final_checks;
#[path = "../history.rs"]
mod history;
mod incidents;
mod invariants;
mod leads;
mod link;
mod network;
mod operator;
mod panics;
mod pod;
mod process_pause;
mod recorder;
mod scenario;
mod seeded;
mod seeds;
mod sessions;
mod setup;
mod world;

use std::ops::Range;

use seeds::{RunResult, run_all, run_telling_all, run_until};
use setup::Control;

/// The seeds of `make sim`.
const SEEDS: Range<u64> = 0..1_000;

/// The limits of durations after everything was healed, in TTLs: twice what was measured in
/// `SEEDS`.
const LONGEST: [(&str, f64); 2] = [
    ("until nobody holds what nobody has", 13.0),
    ("a wait", 12.0),
];

fn wanted() -> Range<u64> {
    let Ok(range) = std::env::var("SIM_SEEDS") else {
        return SEEDS;
    };
    let (from, to) = range.split_once("..").expect("SIM_SEEDS is like 0..1000");
    let number = |text: &str| text.parse().expect("SIM_SEEDS is like 0..1000");
    number(from)..number(to)
}

#[test]
fn invariants_hold_in_every_world() {
    let words = std::env::var("SIM_FLAW").unwrap_or_default();
    let totals = run_until(wanted(), Control::Nothing, 1, &words);
    println!(
        "sim: {} worlds, in TTLs {:.2?}",
        totals.worlds, totals.longest
    );
    for (what, times) in &totals.counts {
        println!("sim: {times:>9} {what}");
    }
    for ended in &totals.flawed {
        ended.show();
    }
    let flaw = totals.flawed.first().map(RunResult::flaw_of_seed);
    assert!(flaw.is_none(), "{}", flaw.unwrap_or_default());
    for (what, bound) in LONGEST {
        let took = totals.longest.get(what).copied().unwrap_or_default();
        assert!(took < bound, "{what}: {took:.2} TTLs");
    }
    let missing = coverage::missing(&totals);
    assert!(missing.is_empty(), "happened too seldom: {missing:?}");
}

/// Also shows the seed that `SIM_SEED` selects.
#[test]
fn replay_of_a_seed_is_identical() {
    let seed = std::env::var("SIM_SEED").ok();
    let seeds = seed.as_ref().map_or(0..20, |seed| {
        let seed = seed.parse().expect("SIM_SEED is a number");
        seed..seed + 1
    });
    for number in seeds {
        let (first, again) = (run_telling_all(number), run_telling_all(number));
        if seed.is_some() {
            for line in &first.trace {
                println!("{line}");
            }
        }
        let both = first.trace.iter().zip(&again.trace);
        let differs = both.enumerate().find(|(_, (one, other))| one != other);
        assert_eq!(differs, None, "seed {number} went two ways");
        assert_eq!(first.trace.len(), again.trace.len(), "seed {number}");
        assert_eq!(first.flaw, None, "seed {number}");
    }
}

/// The printed seed reproduces a failure.
#[test]
#[ignore = "hours; `make soak`"]
fn soak() {
    let worlds = std::env::var("SIM_SOAK").unwrap_or_else(|_| "100000".to_owned());
    let worlds: u64 = worlds.parse().expect("SIM_SOAK is a number");
    let totals = run_all(SEEDS.end..SEEDS.end + worlds, Control::Nothing, 10);
    println!("sim: {} worlds", totals.worlds);
    for ended in &totals.flawed {
        ended.show();
    }
    assert!(totals.flawed.is_empty(), "see the traces above");
}
