//! The long run: trouble, one after the other and sometimes two at once, for as long as is asked.
//!
//! `FAULT_SEED` does the same to the same again, `FAULT_MINUTES` says for how long. When what is done takes effect
//! is up to the machine, so a seed repeats the faults and not the run.

use std::collections::BTreeSet;
use std::env;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;

use crate::harness::now;
use crate::history::{History, check_linearizable};
use crate::journal::claim;
use crate::schedule::{Kind, Schedule};
use crate::strike::Remedy;
use crate::verdict::{Counts, are_enough_taken_over, nobody_panicked, porcupine};
use crate::world::{Place, Plan, World, forget_all_but, named};

const MINUTES: f64 = 10.0;
/// The histories and logs of so many runs are kept.
const KEPT: usize = 5;
/// How often pods are stopped once more where too few came of that, and for how long: longer than sessions
/// live.
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

/// Unlike what is printed by a macro, this is shown when the test passes too.
pub(crate) fn tell(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

/// What was done so far.
struct Done {
    began: Moment,
    kinds: BTreeSet<Kind>,
    /// What the test's own hands failed to do.
    failed: BTreeSet<Kind>,
    injections: usize,
}

impl Done {
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
    forget_all_but("run", KEPT - 1)?;
    let place = Place::new(&named("run", seed))?;
    tell(&format!(
        "histories and logs: {}",
        place.directory.display()
    ))?;
    let ended = run(seed, Duration::from_secs_f64(minutes * 60.0), &place).await;
    // What was done when stands above.
    ended.with_context(|| format!("FAULT_SEED={seed}, see {}", place.directory.display()))
}

async fn run(seed: u64, lasts: Duration, place: &Place) -> Result<()> {
    let mut world = World::start(place, Plan::sound(seed)).await?;
    claim(&place.histories(), seed)?;
    world.until_looked_after().await?;
    world.start_apps()?;
    let done = trouble(&mut world, seed, lasts).await?;
    stop_until_it_is_enough(&mut world, seed, lasts).await?;
    world.until_looked_after().await?;
    world.finish().await?;
    world.until_all_are_given_again().await?;
    world.register.tell_logs()?;
    // What apps say lies beside their histories.
    nobody_panicked(&place.logs())?;
    nobody_panicked(&place.histories())?;
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

/// A stopped app's write is stale only if somebody else wanted the lock meanwhile, which in a short run may never
/// have been so; and how many locks the dead had, of all that was done to them, is up to the machine.
async fn stop_until_it_is_enough(world: &mut World, seed: u64, lasted: Duration) -> Result<()> {
    let mut schedule = Schedule::new(seed);
    for _ in 0..STOPS {
        let are_enough = are_enough_taken_over(&world.place.logs(), lasted)?;
        if world.register.refused() > 0 && are_enough {
            return Ok(());
        }
        let remedy = world.strike(Kind::HangPod, &mut schedule).await?;
        tokio::time::sleep(STOPPED).await;
        world.heal(remedy).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

async fn trouble(world: &mut World, seed: u64, lasts: Duration) -> Result<Done> {
    let mut schedule = Schedule::new(seed);
    let mut done = Done {
        began: now(),
        kinds: BTreeSet::new(),
        failed: BTreeSet::new(),
        injections: 0,
    };
    let ends = now().after(lasts);
    while now() < ends {
        let next = schedule.next();
        let met = world.met()?;
        let mut struck = Vec::new();
        for kind in [Some(next.kind), next.and].into_iter().flatten() {
            let kind = world.possible(kind);
            let remedy = world.strike(kind, &mut schedule).await;
            let remedy = remedy.with_context(|| format!("{kind:?}"))?;
            done.tell(&format!("{kind:?} for {:?}: {remedy}", next.lasts))?;
            struck.push((kind, remedy));
        }
        tokio::time::sleep(next.lasts).await;
        while let Some((kind, remedy)) = struck.pop() {
            let told = remedy.to_string();
            let is_failed = matches!(remedy, Remedy::Failed(_));
            let is_done = !is_failed && !matches!(remedy, Remedy::Missed(_));
            if is_failed {
                done.failed.insert(kind);
            }
            world.heal(remedy).await.with_context(|| told)?;
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
