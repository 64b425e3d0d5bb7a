//! The simulation: agents as they ship on the embedded store, behind a network that is as bad as a seed
//! says, in virtual time. A seed decides everything, so whatever it found is found again by its number.
//!
//! `SIM_SEEDS=a..b` says which seeds; `SIM_SEED=n` shows one. With `SIM_FLAW=words` other flaws are passed over,
//! for what has a bug on purpose.

#![cfg(test)]

mod app;
#[cfg(feature = "seeded-bugs")]
mod bugs;
mod checks;
mod clock;
mod controls;
mod coverage;
mod diary;
mod disk;
mod epilogue;
#[path = "../history.rs"]
mod history;
mod incidents;
mod leads;
mod link;
mod network;
mod operator;
mod panics;
mod people;
mod pod;
mod seeds;
mod sessions;
mod setting;
mod stillness;
mod story;
mod troubles;
mod world;

use std::ops::Range;

use seeds::{Ended, run_all, run_telling_all, run_until};
use setting::Bent;

/// What `make sim` runs.
const SEEDS: Range<u64> = 0..2_000;

/// What takes less than so many TTLs after everything was mended: twice what was measured in `SEEDS`.
const LONGEST: [(&str, f64); 2] = [
    ("until nobody holds what nobody has", 13.0),
    ("a wait", 12.0),
];

fn wanted() -> Range<u64> {
    let Ok(range) = std::env::var("SIM_SEEDS") else {
        return SEEDS;
    };
    let (from, to) = range.split_once("..").expect("SIM_SEEDS is like 0..2000");
    let number = |text: &str| text.parse().expect("SIM_SEEDS is like 0..2000");
    number(from)..number(to)
}

#[test]
fn invariants_hold_in_every_world() {
    let words = std::env::var("SIM_FLAW").unwrap_or_default();
    let sum = run_until(wanted(), Bent::Nothing, 1, &words);
    println!("sim: {} worlds, in TTLs {:.2?}", sum.worlds, sum.longest);
    for (what, times) in &sum.counts {
        println!("sim: {times:>9} {what}");
    }
    for ended in &sum.flawed {
        ended.show();
    }
    let flaw = sum.flawed.first().map(Ended::flaw_of_seed);
    assert!(flaw.is_none(), "{}", flaw.unwrap_or_default());
    for (what, bound) in LONGEST {
        let took = sum.longest.get(what).copied().unwrap_or_default();
        assert!(took < bound, "{what}: {took:.2} TTLs");
    }
    let missing = coverage::missing(&sum);
    assert!(missing.is_empty(), "happened too seldom: {missing:?}");
}

/// Also how a seed is looked at: `SIM_SEED` says which.
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

/// A failure is repeated by its number; what is found by chance is printed with it.
#[test]
#[ignore = "hours; `make soak`"]
fn soak() {
    let worlds = std::env::var("SIM_SOAK").unwrap_or_else(|_| "100000".to_owned());
    let worlds: u64 = worlds.parse().expect("SIM_SOAK is a number");
    let sum = run_all(SEEDS.end..SEEDS.end + worlds, Bent::Nothing, 10);
    println!("sim: {} worlds", sum.worlds);
    for ended in &sum.flawed {
        ended.show();
    }
    assert!(sum.flawed.is_empty(), "see the traces above");
}
