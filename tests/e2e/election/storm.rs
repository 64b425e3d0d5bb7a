//! Three minutes of random faults: candidates are killed, hang, stop and step down, and the API server is
//! unavailable. Two candidates never believe to lead at one time.
//!
//! The faults are the same each time unless `LEASEHOLD_SEED` has another seed (`new`: one that was never tried);
//! `LEASEHOLD_STORM_SECONDS` is the duration. When a fault takes effect depends on the machine, so the storm
//! continues, up to twice as long, until the lead has changed often enough.

use std::cmp::Reverse;
use std::env;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;
use reqwest::Client;

use super::beliefs::{changes, check_released, gaps, terms};
use super::candidates::{Candidates, ELECTION};
use super::until_all_run;
use crate::harness::{Cluster, Sidecar, TakeOver, now};
use crate::seed::seed;

const CANDIDATES: usize = 5;
/// How many of them run by a connection.
const BY_CONNECTION: usize = 1;
/// For how long apps ask before a hung process continues.
const ASKED_BEFORE: Duration = Duration::from_millis(50);
const TTL_SECONDS: u64 = 3;
const LASTS_SECONDS: u64 = 180;
/// How many of the times without a leader are explained.
const LONGEST_SHOWN: usize = 4;
/// A fault up to this long before may still be the cause.
const BEFORE: Duration = Duration::from_secs(8);
/// How often the leader must have changed for the check to mean something: once in this many seconds.
const CHANGE_EVERY: u64 = 15;

/// What happens to one candidate, or to the store.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Hang,
    Stop,
    StepDown,
    StoreHangs,
    StoreDies,
    HangInOutage,
    KillHolder,
}

const FAULTS: [Fault; 15] = [
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::Hang,
    Fault::Hang,
    Fault::Hang,
    Fault::Hang,
    Fault::Stop,
    Fault::StepDown,
    Fault::StepDown,
    Fault::StoreHangs,
    Fault::StoreDies,
    Fault::HangInOutage,
    Fault::KillHolder,
    Fault::KillHolder,
];

fn number_from_env(name: &str) -> Result<Option<u64>> {
    match env::var(name) {
        Ok(text) => Ok(Some(text.parse().with_context(|| name.to_owned())?)),
        Err(_unset) => Ok(None),
    }
}

struct Storm {
    cluster: std::sync::Arc<Cluster>,
    candidates: Candidates,
    dice: fastrand::Rng,
    /// When the store was away.
    outages: Vec<(Moment, Moment)>,
    log: Vec<Done>,
}

/// The faults, each from and until when.
struct Done {
    from: Moment,
    until: Moment,
    fault: Fault,
    victim: usize,
}

impl Storm {
    /// The leader more often than any other: what befalls a follower changes little.
    fn victim(&mut self) -> usize {
        let anybody = self.dice.usize(..CANDIDATES);
        let leader = self.candidates.last_leader().filter(|_| self.dice.bool());
        leader.unwrap_or(anybody)
    }

    fn wait_of(&mut self, longest_ms: u64) -> Duration {
        Duration::from_millis(self.dice.u64(100..longest_ms))
    }

    fn pick(&mut self) -> (Fault, usize, Duration) {
        let fault = FAULTS[self.dice.usize(..FAULTS.len())];
        (fault, self.victim(), self.wait_of(6_000))
    }

    async fn inject(&mut self, fault: Fault, victim: usize, wait: Duration) -> Result<()> {
        let cluster = self.cluster.clone();
        let control_plane = cluster.control_plane();
        match fault {
            Fault::Kill => {
                if let Some(process) = self.candidates.take_process(victim) {
                    process.kill9()?;
                }
                tokio::time::sleep(wait / 4).await;
                self.candidates.start_process(victim).await?;
            }
            Fault::Hang => {
                if let Some(process) = self.candidates.process(victim) {
                    let apps = self.candidates.connected(victim).await;
                    process.freeze()?;
                    tokio::time::sleep(wait).await;
                    self.thaw(victim, &process, &apps).await?;
                }
            }
            Fault::Stop => {
                if let Some(process) = self.candidates.process(victim) {
                    process.sigterm()?;
                    process.ended().await?;
                }
                drop(self.candidates.take_process(victim));
                self.candidates.start_process(victim).await?;
            }
            Fault::StepDown => self.candidates.step_down(victim).await?,
            Fault::StoreHangs => {
                control_plane.freeze().await?;
                tokio::time::sleep(wait).await;
                control_plane.thaw().await?;
            }
            Fault::HangInOutage => {
                let process = self.candidates.process(victim);
                let process = process.context("it was started again")?;
                let apps = self.candidates.connected(victim).await;
                process.freeze()?;
                control_plane.freeze().await?;
                tokio::time::sleep(wait).await;
                if self.dice.bool() {
                    self.thaw(victim, &process, &apps).await?;
                    tokio::time::sleep(wait / 4).await;
                }
                control_plane.thaw().await?;
                self.thaw(victim, &process, &apps).await?;
            }
            Fault::StoreDies => {
                control_plane.kill_api_server().await?;
                tokio::time::sleep(wait / 2).await;
                control_plane.start_api_server().await?;
            }
            Fault::KillHolder => self.candidates.kill_holder()?,
        }
        Ok(())
    }

    /// Lets a process go on that hangs, and that apps have asked just before.
    async fn thaw(&mut self, victim: usize, process: &Sidecar, apps: &[Client]) -> Result<()> {
        self.candidates.ask_all(victim, apps);
        tokio::time::sleep(ASKED_BEFORE).await;
        process.thaw()
    }

    fn note(&mut self, done: Done) {
        let has_outage = matches!(
            done.fault,
            Fault::StoreHangs | Fault::StoreDies | Fault::HangInOutage
        );
        if has_outage {
            self.outages.push((done.from, done.until));
        }
        self.log.push(done);
    }

    /// How much of a time the store was there.
    fn there_in(&self, (from, until): (Moment, Moment)) -> Duration {
        let outages = self.outages.iter();
        let away = outages.map(|outage| outage.1.min(until).since(outage.0.max(from)));
        until.since(from).saturating_sub(away.sum())
    }

    /// Prints the faults during and shortly before the longest times without a leader.
    fn explain(&self, mut gaps: Vec<(Moment, Moment)>) -> Vec<String> {
        gaps.sort_unstable_by_key(|gap| Reverse(self.there_in(*gap)));
        let mut lines = Vec::new();
        for gap in gaps.into_iter().take(LONGEST_SHOWN) {
            let (long, there) = (gap.1.since(gap.0), self.there_in(gap));
            lines.push(format!(
                "nobody led for {long:?}, {there:?} of it with the store"
            ));
            let is_near = |done: &&Done| done.from < gap.1 && gap.0 < done.until.after(BEFORE);
            for done in self.log.iter().filter(is_near) {
                let (before, after) = (gap.0.since(done.from), done.from.since(gap.0));
                let (what, long) = ((done.fault, done.victim), done.until.since(done.from));
                lines.push(format!("  -{before:?} +{after:?}: {what:?} for {long:?}"));
            }
        }
        lines
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "three minutes and a control plane of its own: make elections"]
async fn two_candidates_never_lead_at_once_under_faults() -> Result<()> {
    let seed = seed();
    let seconds = number_from_env("LEASEHOLD_STORM_SECONDS")?.unwrap_or(LASTS_SECONDS);
    let changes_min = usize::try_from(seconds / CHANGE_EVERY)?;
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("election-storm").await?;
    let candidates = Candidates::start(&namespace, CANDIDATES, BY_CONNECTION, TTL_SECONDS).await?;
    until_all_run(&namespace, ELECTION, CANDIDATES).await?;
    let mut storm = Storm {
        cluster,
        candidates,
        dice: fastrand::Rng::with_seed(seed),
        outages: Vec::new(),
        log: Vec::new(),
    };
    let lasts = Duration::from_secs(seconds);
    let (ends_at, ends_at_last) = (now().after(lasts), now().after(lasts * 2));
    // One more, because a belief whose app released it at once does not count in the end.
    let is_short = |storm: &Storm| storm.candidates.changes() <= changes_min;
    while now() < ends_at || (now() < ends_at_last && is_short(&storm)) {
        let (fault, victim, wait) = storm.pick();
        println!("{fault:?} of {victim} for {wait:?}");
        let from = now();
        storm.inject(fault, victim, wait).await?;
        storm.note(Done {
            from,
            until: now(),
            fault,
            victim,
        });
        let pause = storm.wait_of(1_500);
        tokio::time::sleep(pause).await;
    }
    // When all is well again, all run, and one leads.
    until_all_run(&namespace, ELECTION, CANDIDATES).await?;
    let (beliefs, given_back) = std::mem::take(&mut storm.candidates).beliefs().await?;
    println!("{}", storm.explain(gaps(&beliefs)).join("\n"));
    check_released(&beliefs, &given_back).map_err(anyhow::Error::msg)?;
    let terms = terms(&beliefs).map_err(anyhow::Error::msg)?;
    let changes = changes(&terms);
    let of_connection = terms
        .iter()
        .filter(|term| term.candidate.0 >= CANDIDATES - BY_CONNECTION);
    println!(
        "{} answers of a leader, {} terms ({} by a connection), {changes} changes, {} given back",
        beliefs.len(),
        terms.len(),
        of_connection.count(),
        given_back.len()
    );
    ensure!(changes >= changes_min, "{changes} changes: {terms:?}");
    Ok(())
}
