//! Negative controls: each run breaks one rule on purpose, and a check must detect it while the run continues.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::history::History;
use crate::recorder::{claim, now_ns};
use crate::register::Fence;
use crate::run::tell;
use crate::schedule::{Kind, Schedule};
use crate::seed::seed;
use crate::world::{Place, Plan, World};

/// Longer than the validity of sessions and of leases that are not renewed.
const OUTLIVES: Duration = Duration::from_secs(8);
/// How long a pending write may take to arrive.
const ARRIVES: Duration = Duration::from_secs(1);
/// The longest time between an event and its line in the file.
const WRITTEN: Duration = Duration::from_secs(1);
/// The number of attempts. Another app has to want the lock in time, which may not happen each
/// time.
const TIMES: usize = 16;

/// A violation that a check must detect.
struct Control {
    about: &'static str,
    plan: Plan,
    /// The faults that are injected in turn, until the violation is detected.
    kinds: &'static [Kind],
    /// The duration of each fault.
    lasts: Duration,
    /// The violation must contain one of these.
    words: &'static [&'static str],
}

impl Control {
    /// Stops apps, sidecars and pods until a check reports the expected violation.
    async fn must_be_noticed(self) -> Result<()> {
        let place = Place::new(self.about)?;
        let mut world = World::start(&place, self.plan).await?;
        claim(&place.histories(), self.plan.seed)?;
        world.until_operator_leads().await?;
        world.start_apps()?;
        let mut schedule = Schedule::new(self.plan.seed);
        for (times, kind) in (1..=TIMES).zip(self.kinds.iter().cycle()) {
            let undo = world.inject(*kind, &mut schedule).await?;
            tokio::time::sleep(self.lasts).await;
            world.undo(undo).await?;
            tokio::time::sleep(ARRIVES).await;
            // The apps continue to write while their files are read one after the other.
            world.register.tell_logs()?;
            let seen = now_ns();
            tokio::time::sleep(WRITTEN).await;
            let history = History::read_directory(&place.histories())?.up_to(seen);
            let violations = history.violations();
            if violations.is_empty() {
                continue;
            }
            let said: Vec<_> = violations.iter().map(ToString::to_string).collect();
            let is_meant = |it: &&String| self.words.iter().any(|words| it.contains(words));
            let Some(meant) = said.iter().find(is_meant) else {
                bail!("another one:\n{}", said.join("\n"));
            };
            return tell(&format!("noticed after {times}: {meant}"));
        }
        bail!("apps and pods were stopped {TIMES} times, and nothing was noticed")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_control_register_without_token_check_is_detected() -> Result<()> {
    let control = Control {
        about: "takes-all",
        plan: Plan {
            fence: Fence::TakesAll,
            ..Plan::sound(seed())
        },
        kinds: &[Kind::HangApp, Kind::HangPod],
        lasts: OUTLIVES,
        // The violation appears in a register (its own record or its apps' observations) or in a
        // log.
        words: &["accepted token", "back to token", "has an entry 0 times"],
    };
    control.must_be_noticed().await
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_control_apps_past_their_deadline_are_detected() -> Result<()> {
    let control = Control {
        about: "overtrust",
        plan: Plan {
            overtrust_ms: 2_000,
            ..Plan::sound(seed())
        },
        kinds: &[Kind::HangApp, Kind::HangPod],
        lasts: OUTLIVES,
        words: &["believed to have"],
    };
    control.must_be_noticed().await
}

/// Only an app that still wants its lock listens for that long. An app without a stream has sent a
/// renewal to the silent sidecar, and detects by its own timeout that its deadline has passed.
#[tokio::test(flavor = "multi_thread")]
async fn fault_control_silent_sidecar_is_detected() -> Result<()> {
    let control = Control {
        about: "silent",
        plan: Plan {
            secret_stops: true,
            works_long: true,
            ..Plan::sound(seed())
        },
        kinds: &[Kind::HangSidecar],
        lasts: Duration::from_secs(14),
        words: &["nobody told the app", "too late"],
    };
    control.must_be_noticed().await
}

/// It takes over a lock from a partitioned holder that still believes. There are few locks, so that
/// each always has a waiter.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a binary with the seeded bugs: make fault"]
async fn fault_control_impatient_operator_is_detected() -> Result<()> {
    let control = Control {
        about: "impatient",
        plan: Plan {
            operators_bug: Some("impatient-operator"),
            works_long: true,
            resources: 2,
            ..Plan::sound(seed())
        },
        kinds: &[Kind::Partition],
        lasts: OUTLIVES,
        words: &["believed to have"],
    };
    control.must_be_noticed().await
}
