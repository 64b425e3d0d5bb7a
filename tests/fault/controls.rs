//! That a run can fail: what must be noticed is done on purpose, each in a world of its own, and the history
//! is looked at while it goes on.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::history::History;
use crate::journal::{claim, now_ns};
use crate::register::Fence;
use crate::run::tell;
use crate::schedule::{Kind, Schedule};
use crate::world::{Place, Plan, World};

/// How long they are stopped: longer than sessions and silent leases live, and what a run claims after that.
const STOPPED: Duration = Duration::from_secs(8);
/// How long what it had in its hands may take to arrive.
const ARRIVES: Duration = Duration::from_secs(1);
/// How long after it happened an event is in its file at the latest.
const WRITTEN: Duration = Duration::from_millis(500);
/// How often; somebody else has to want the lock in time, which once may not be so.
const TIMES: usize = 16;

/// Stops apps, sidecars and pods until a check says this.
async fn is_noticed(about: &str, plan: Plan, kinds: &[Kind], words: &[&str]) -> Result<()> {
    tell(&format!("seed {}", plan.seed))?;
    let place = Place::new(about)?;
    let mut world = World::start(&place, plan).await?;
    claim(&place.histories(), plan.seed)?;
    world.until_looked_after().await?;
    world.start_apps()?;
    let mut schedule = Schedule::new(plan.seed);
    for kind in kinds.iter().cycle().take(TIMES) {
        let remedy = world.strike(*kind, &mut schedule).await?;
        tokio::time::sleep(STOPPED).await;
        world.heal(remedy).await?;
        tokio::time::sleep(ARRIVES).await;
        // The apps go on writing while their files are read, one after the other.
        world.register.tell_logs()?;
        let seen = now_ns();
        tokio::time::sleep(WRITTEN).await;
        let history = History::read_directory(&place.histories())?.up_to(seen);
        let violations = history.violations();
        if violations.is_empty() {
            continue;
        }
        let is_meant = |words: &&str| violations.iter().any(|it| it.to_string().contains(words));
        ensure!(words.iter().any(is_meant), "another one: {violations:?}");
        return Ok(());
    }
    bail!("apps and pods were stopped {TIMES} times, and nothing was noticed")
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_control_a_register_that_looks_at_no_token_is_noticed() -> Result<()> {
    let plan = Plan {
        fence: Fence::TakesAll,
        ..Plan::sound(fastrand::u64(..))
    };
    let kinds = [Kind::HangApp, Kind::HangPod];
    // In a register, as it says or as its apps saw it, or in a log.
    let words = ["accepted token", "back to token", "has an entry 0 times"];
    is_noticed("takes-all", plan, &kinds, &words).await
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_control_apps_that_believe_two_seconds_too_long_are_noticed() -> Result<()> {
    let plan = Plan {
        overtrust_ms: 2_000,
        ..Plan::sound(fastrand::u64(..))
    };
    let kinds = [Kind::HangApp, Kind::HangPod];
    is_noticed("overtrust", plan, &kinds, &["believed to have"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_control_a_sidecar_that_says_nothing_is_noticed() -> Result<()> {
    let plan = Plan {
        secret_stops: true,
        ..Plan::sound(fastrand::u64(..))
    };
    is_noticed(
        "silent",
        plan,
        &[Kind::HangSidecar],
        &["nobody told the app", "too late"],
    )
    .await
}

/// It takes a lock from who is cut off and still believes.
#[cfg(feature = "seeded-bugs")]
#[tokio::test(flavor = "multi_thread")]
async fn fault_control_an_impatient_operator_is_noticed() -> Result<()> {
    let plan = Plan {
        operators_bug: Some("impatient-operator"),
        ..Plan::sound(fastrand::u64(..))
    };
    is_noticed("impatient", plan, &[Kind::Partition], &["believed to have"]).await
}
