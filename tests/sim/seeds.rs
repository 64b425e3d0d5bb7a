//! Running seeds: one world each, several at once on threads of their own.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use tokio::runtime::Builder;

use crate::panics;
use crate::setting::{Bent, Setting, Trace};
use crate::story;
use crate::world::{Counts, Longest, World};

/// How many worlds run at once.
const THREADS: usize = 2;
/// How much of a trace is shown.
const LINES_SHOWN: usize = 60;

/// What became of one world.
pub(crate) struct Ended {
    pub(crate) seed: u64,
    pub(crate) flaw: Option<String>,
    /// What its history has that cannot be.
    pub(crate) history: Option<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) counts: Counts,
    pub(crate) longest: Longest,
}

impl Ended {
    /// Its flaw and its number, in a line.
    pub(crate) fn flaw_of_seed(&self) -> String {
        format!(
            "seed {}: {}",
            self.seed,
            self.flaw.as_deref().unwrap_or("no flaw")
        )
    }

    /// What led to the flaw, and how to see it again.
    pub(crate) fn show(&self) {
        let from = self.trace.len().saturating_sub(LINES_SHOWN);
        for line in &self.trace[from..] {
            println!("{line}");
        }
        println!("{}", self.flaw.as_deref().unwrap_or("no flaw"));
        println!(
            "SIM_SEED={} cargo test --profile model --test sim replay -- --nocapture",
            self.seed
        );
    }
}

/// Runs the world of a seed to its end.
pub(crate) fn run(seed: u64, bent: Bent) -> Ended {
    let mut random = Rng::with_seed(seed);
    let setting = Setting::of(seed, bent, &mut random);
    run_as(seed, setting, random)
}

/// The same, with a trace that has every call, also what went as it should.
pub(crate) fn run_telling_all(seed: u64) -> Ended {
    let mut random = Rng::with_seed(seed);
    let setting = Setting {
        trace: Trace::Everything,
        ..Setting::of(seed, Bent::Nothing, &mut random)
    };
    run_as(seed, setting, random)
}

fn run_as(seed: u64, setting: Setting, random: Rng) -> Ended {
    panics::watch();
    let bent = setting.bent;
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let world = runtime.block_on(async {
        let world = World::new(setting);
        tokio::select! {
            biased;
            () = world.broken() => {}
            () = story::tell(world.clone(), random) => {}
        }
        world
    });
    // Nothing happens any more once its tasks are gone.
    drop(runtime);
    let mut book = world.book();
    let history = book.diary.history().check().err();
    let history = history.map(|error| format!("the history: {error}"));
    // What somebody did not know any more is nowhere in a history.
    let counts_as_flaw = bent == Bent::Nothing && !book.checks.has_misremembered();
    let of_history = history.clone().filter(|_| counts_as_flaw);
    Ended {
        seed,
        flaw: book.flaw.take().or_else(panics::flaw).or(of_history),
        history,
        trace: std::mem::take(&mut book.trace),
        counts: std::mem::take(&mut book.counts),
        longest: std::mem::take(&mut book.longest),
    }
}

/// What became of many worlds.
#[derive(Default)]
pub(crate) struct Sum {
    pub(crate) counts: Counts,
    pub(crate) longest: Longest,
    pub(crate) flawed: Vec<Ended>,
    pub(crate) worlds: u64,
}

/// Runs the worlds of all these seeds, or until so many had flaws.
pub(crate) fn run_all(seeds: Range<u64>, bent: Bent, flaws: usize) -> Sum {
    run_until(seeds, bent, flaws, "")
}

/// The same, where only flaws with these words count.
pub(crate) fn run_until(seeds: Range<u64>, bent: Bent, flaws: usize, words: &str) -> Sum {
    let next = AtomicU64::new(seeds.start);
    let sum = Mutex::new(Sum::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_enough = sum.lock().expect("no thread failed").flawed.len() >= flaws;
            if seed >= seeds.end || is_enough {
                return;
            }
            let ended = run(seed, bent);
            sum.lock().expect("no thread failed").add(ended, words);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    let mut sum = sum.into_inner().expect("no thread failed");
    // Whichever thread was first.
    sum.flawed.sort_by_key(|ended| ended.seed);
    sum
}

impl Sum {
    fn add(&mut self, ended: Ended, words: &str) {
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
