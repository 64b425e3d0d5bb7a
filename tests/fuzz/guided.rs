//! Runs one of the fuzz targets under libFuzzer, which maximizes coverage. `LEASEHOLD_FUZZ` names
//! the target.
//!
//! libFuzzer mutates half of the inputs. The others come from our own mutator, which knows JSON.

#![no_main]
#![allow(dead_code, reason = "the short run uses more of the targets")]

mod mutate;
#[path = "../it/paused_clock.rs"]
mod paused_clock;
mod targets;

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use mutate::Mutator;
use targets::Target;

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("LEASEHOLD_FUZZ").unwrap_or_default();
    let found = targets::ALL.iter().find(|target| target.name == name);
    let names: Vec<_> = targets::ALL.iter().map(|target| target.name).collect();
    found
        .copied()
        .unwrap_or_else(|| panic!("LEASEHOLD_FUZZ is {name:?} and none of {names:?}"))
});

/// Writes the generated inputs beside the input files, before libFuzzer reads them.
fn lay_seeds() {
    let Ok(folder) = std::env::var("LEASEHOLD_FUZZ_SEEDS") else {
        return;
    };
    for (number, seed) in (TARGET.seeds)().iter().enumerate() {
        let path = Path::new(&folder).join(format!("seed-{number}"));
        std::fs::write(path, seed).expect("the folder is there");
    }
}

fuzz_target!(
    init: lay_seeds(),
    |input: &[u8]| {
        (TARGET.run)(input);
    }
);

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 2 == 0 {
        return libfuzzer_sys::fuzzer_mutate(data, size, max_size);
    }
    let mut mutator = Mutator::new(seed.into(), TARGET.words, vec![data[..size].to_vec()]);
    let mut changed = mutator.next();
    changed.truncate(max_size.min(data.len()));
    data[..changed.len()].copy_from_slice(&changed);
    changed.len()
});
