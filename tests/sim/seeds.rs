//! Runs seeds: one world each, several at once in separate threads.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use tokio::runtime::Builder;

use crate::panics;
use crate::scenario;
use crate::setup::{Control, Setup, Trace};
use crate::world::{Counts, Longest, World};

/// The number of concurrent worlds.
const THREADS: usize = 2;
/// How many lines of a trace are shown.
const LINES_SHOWN: usize = 60;

/// The result of one world.
pub(crate) struct RunResult {
    pub(crate) seed: u64,
    pub(crate) flaw: Option<String>,
    /// The violations in its history.
    pub(crate) history: Option<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) counts: Counts,
    pub(crate) longest: Longest,
}

impl RunResult {
    /// Returns its flaw and its seed, on one line.
    pub(crate) fn flaw_of_seed(&self) -> String {
        format!(
            "seed {}: {}",
            self.seed,
            self.flaw.as_deref().unwrap_or("no flaw")
        )
    }

    /// Prints the end of the trace, the flaw, and the command that reproduces it.
    pub(crate) fn show(&self) {
        let from = self.trace.len().saturating_sub(LINES_SHOWN);
        for line in &self.trace[from..] {
            println!("{line}");
        }
        println!("{}", self.flaw.as_deref().unwrap_or("no flaw"));
        println!(
            "SIM_SEED={} cargo test --test sim replay -- --nocapture",
            self.seed
        );
    }
}

/// Runs the world of a seed to its end.
pub(crate) fn run(seed: u64, control: Control) -> RunResult {
    let mut random = Rng::with_seed(seed);
    let setup = Setup::of(seed, control, &mut random);
    run_as(seed, setup, random)
}

/// The same, with every call in the trace, including successful ones.
pub(crate) fn run_telling_all(seed: u64) -> RunResult {
    let mut random = Rng::with_seed(seed);
    let setup = Setup {
        trace: Trace::Everything,
        ..Setup::of(seed, Control::Nothing, &mut random)
    };
    run_as(seed, setup, random)
}

fn run_as(seed: u64, setup: Setup, random: Rng) -> RunResult {
    panics::watch();
    let control = setup.control;
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let world = runtime.block_on(async {
        let world = World::new(setup);
        tokio::select! {
            biased;
            () = world.broken() => {}
            () = scenario::run(world.clone(), random) => {}
        }
        world
    });
    // Nothing happens after the world's tasks have ended.
    drop(runtime);
    let mut records = world.records();
    let history = records.recorder.history().check().err();
    let history = history.map(|error| format!("the history: {error}"));
    let counts_as_flaw = control == Control::Nothing;
    let of_history = history.clone().filter(|_| counts_as_flaw);
    RunResult {
        seed,
        flaw: records.flaw.take().or_else(panics::flaw).or(of_history),
        history,
        trace: std::mem::take(&mut records.trace),
        counts: std::mem::take(&mut records.counts),
        longest: std::mem::take(&mut records.longest),
    }
}

/// The results of many worlds.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) counts: Counts,
    pub(crate) longest: Longest,
    pub(crate) flawed: Vec<RunResult>,
    pub(crate) worlds: u64,
}

/// Runs the worlds of all these seeds, or until `flaws` of them had flaws.
pub(crate) fn run_all(seeds: Range<u64>, control: Control, flaws: usize) -> Totals {
    run_until(seeds, control, flaws, "")
}

/// The same, but only flaws with these words count.
pub(crate) fn run_until(seeds: Range<u64>, control: Control, flaws: usize, words: &str) -> Totals {
    let next = AtomicU64::new(seeds.start);
    let totals = Mutex::new(Totals::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_enough = totals.lock().expect("no thread failed").flawed.len() >= flaws;
            if seed >= seeds.end || is_enough {
                return;
            }
            let ended = run(seed, control);
            totals.lock().expect("no thread failed").add(ended, words);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    let mut totals = totals.into_inner().expect("no thread failed");
    // Independent of the order in which the threads finished.
    totals.flawed.sort_by_key(|ended| ended.seed);
    totals
}

impl Totals {
    fn add(&mut self, ended: RunResult, words: &str) {
        self.worlds += 1;
        for (what, times) in &ended.counts {
            *self.counts.entry(what).or_default() += times;
        }
        for (what, ttls) in &ended.longest {
            let longest = self.longest.entry(what).or_default();
            *longest = longest.max(*ttls);
        }
        if ended.flaw.as_ref().is_some_and(|flaw| flaw.contains(words)) {
            self.flawed.push(ended);
        }
    }
}
