//! The long run: one fault after the other, and sometimes two at once.
//!
//! `FAULT_SEED` repeats a sequence of faults; `FAULT_MINUTES` is the duration. When a fault takes
//! effect depends on the machine, so a seed repeats the faults but not the run.

use std::collections::BTreeSet;
use std::env;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;

use crate::harness::now;
use crate::history::{History, check_linearizable};
use crate::injection::Undo;
use crate::recorder::claim;
use crate::schedule::{Kind, Schedule};
use crate::verdict::{Counts, are_enough_taken_over, no_process_panicked, porcupine};
use crate::world::{Place, Plan, World, keep_latest_runs, named};

const MINUTES: f64 = 10.0;
/// The number of runs whose histories and logs are kept.
const KEPT: usize = 5;
/// How many more times pods are stopped if there were too few take-overs or refused writes, and for
/// how long: longer than the validity of sessions.
const STOPS: usize = 16;
const STOPPED: Duration = Duration::from_secs(6);

fn from_env<T: std::str::FromStr>(name: &str) -> Result<Option<T>> {
    match env::var(name) {
        Ok(text) => {
            let number = text.parse().ok();
            Ok(Some(number.with_context(|| format!("{name} is {text:?}"))?))
        }
        Err(_unset) => Ok(None),
    }
}

/// Unlike the output of `println!`, this is shown for a passing test, too.
pub(crate) fn tell(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

/// The faults so far.
struct Progress {
    began: Moment,
    kinds: BTreeSet<Kind>,
    /// The faults that the test failed to inject.
    failed: BTreeSet<Kind>,
    injections: usize,
}

impl Progress {
    fn count(&mut self, kind: Kind) {
        self.kinds.insert(kind);
        self.injections += 1;
    }

    fn tell(&self, what: &str) -> Result<()> {
        let since = now().since(self.began).as_secs_f64();
        tell(&format!("{since:8.2} s  {what}"))
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "ten minutes and a control plane of its own: make fault"]
async fn fault_apps_hold_each_lock_one_at_a_time_under_faults() -> Result<()> {
    let seed = from_env("FAULT_SEED")?.unwrap_or_else(|| fastrand::u64(..));
    let minutes = from_env("FAULT_MINUTES")?.unwrap_or(MINUTES);
    tell(&format!("FAULT_SEED={seed} FAULT_MINUTES={minutes}"))?;
    keep_latest_runs("run", KEPT - 1)?;
    let place = Place::new(&named("run", seed))?;
    tell(&format!(
        "histories and logs: {}",
        place.directory.display()
    ))?;
    let ended = run(seed, Duration::from_secs_f64(minutes * 60.0), &place).await;
    // The faults are printed above.
    ended.with_context(|| format!("FAULT_SEED={seed}, see {}", place.directory.display()))
}

async fn run(seed: u64, lasts: Duration, place: &Place) -> Result<()> {
    let mut world = World::start(place, Plan::sound(seed)).await?;
    claim(&place.histories(), seed)?;
    world.until_operator_leads().await?;
    world.start_apps()?;
    let done = inject_faults(&mut world, seed, lasts).await?;
    freeze_pods_until_enough(&mut world, seed, lasts).await?;
    world.until_operator_leads().await?;
    world.finish().await?;
    world.until_all_are_granted_again().await?;
    world.register.tell_logs()?;
    // The output of the apps is beside their histories.
    no_process_panicked(&place.logs())?;
    no_process_panicked(&place.histories())?;
    let history = History::read_directory(&place.histories())?;
    let counts = Counts {
        kinds: done.kinds.len(),
        injections: done.injections,
        told: history.check()?,
        ..Counts::of(&history, &place.logs())?
    };
    tell(&counts.to_string())?;
    tell(&check_linearizable(&porcupine(), &place.histories())?)?;
    let never_done: Vec<_> = done.failed.difference(&done.kinds).collect();
    ensure!(
        never_done.is_empty(),
        "{never_done:?} failed each time: see above"
    );
    let stalls = history.stalls();
    if stalls > 0 {
        tell(&format!("the machine stood still {stalls} times"))?;
    }
    counts.suffice(lasts)
}

/// A stopped app's write is stale only if another app acquired the lock meanwhile, which a short run may lack. The
/// number of locks of killed processes depends on the machine.
async fn freeze_pods_until_enough(world: &mut World, seed: u64, lasted: Duration) -> Result<()> {
    let mut schedule = Schedule::new(seed);
    for _ in 0..STOPS {
        let are_enough = are_enough_taken_over(&world.place.logs(), lasted)?;
        if world.register.refused() > 0 && are_enough {
            return Ok(());
        }
        let undo = world.inject(Kind::HangPod, &mut schedule).await?;
        tokio::time::sleep(STOPPED).await;
        world.undo(undo).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

async fn inject_faults(world: &mut World, seed: u64, lasts: Duration) -> Result<Progress> {
    let mut schedule = Schedule::new(seed);
    let mut done = Progress {
        began: now(),
        kinds: BTreeSet::new(),
        failed: BTreeSet::new(),
        injections: 0,
    };
    let ends = now().after(lasts);
    while now() < ends {
        let next = schedule.next();
        let met = world.met()?;
        let mut injected = Vec::new();
        for kind in [Some(next.kind), next.and].into_iter().flatten() {
            let kind = world.possible(kind);
            let undo = world.inject(kind, &mut schedule).await;
            let undo = undo.with_context(|| format!("{kind:?}"))?;
            done.tell(&format!("{kind:?} for {:?}: {undo}", next.lasts))?;
            injected.push((kind, undo));
        }
        tokio::time::sleep(next.lasts).await;
        while let Some((kind, undo)) = injected.pop() {
            let told = undo.to_string();
            let is_failed = matches!(undo, Undo::Failed(_));
            let is_done = !is_failed && !matches!(undo, Undo::Missed(_));
            if is_failed {
                done.failed.insert(kind);
            }
            world.undo(undo).await.with_context(|| told)?;
            if is_done && kind.is_of_messages() && world.met()? == met {
                done.tell(&format!("nothing met {kind:?}"))?;
            } else if is_done {
                done.count(kind);
            }
        }
        tokio::time::sleep(next.rest).await;
    }
    Ok(done)
}
