//! Three minutes of random trouble: candidates are killed, hang, stop and step down, and the API
//! server goes away. Whatever happens, never two believe to lead at one time.
//!
//! What is done to whom is the same each time unless `LEASEHOLD_SEED` says otherwise (`new`: what nobody
//! has tried), `LEASEHOLD_STORM_SECONDS` says for how long. When what was done takes effect is up to the
//! machine, so the storm goes on, up to twice as long, until the lead has changed often enough.

use std::cmp::Reverse;
use std::env;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;
use reqwest::Client;

use super::beliefs::{changes, check_given_back, gaps, terms};
use super::candidates::{Candidates, ELECTION};
use super::until_all_run;
use crate::harness::{Cluster, Sidecar, TakeOver, now};
use crate::seed::seed;

const CANDIDATES: usize = 5;
/// So many of them run by a connection.
const BY_CONNECTION: usize = 1;
/// Apps ask so long before a process that hangs goes on.
const ASKED_BEFORE: Duration = Duration::from_millis(50);
const TTL_SECONDS: u64 = 3;
const LASTS_SECONDS: u64 = 180;
/// So many times without a leader are explained.
const LONGEST_TOLD: usize = 4;
/// What was done so long before may still be the cause.
const BEFORE: Duration = Duration::from_secs(8);
/// So often somebody else must have led for the check to mean something: once in so many seconds.
const CHANGE_EVERY: u64 = 15;

/// What is done to whom, and for how long.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Kill,
    Hang,
    Stop,
    StepDown,
    StoreHangs,
    StoreDies,
    HangInOutage,
    KillHolder,
}

const TROUBLES: [Trouble; 15] = [
    Trouble::Kill,
    Trouble::Kill,
    Trouble::Kill,
    Trouble::Hang,
    Trouble::Hang,
    Trouble::Hang,
    Trouble::Hang,
    Trouble::Stop,
    Trouble::StepDown,
    Trouble::StepDown,
    Trouble::StoreHangs,
    Trouble::StoreDies,
    Trouble::HangInOutage,
    Trouble::KillHolder,
    Trouble::KillHolder,
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

/// What was done, from when to when.
struct Done {
    from: Moment,
    until: Moment,
    trouble: Trouble,
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

    fn pick(&mut self) -> (Trouble, usize, Duration) {
        let trouble = TROUBLES[self.dice.usize(..TROUBLES.len())];
        (trouble, self.victim(), self.wait_of(6_000))
    }

    async fn strike(&mut self, trouble: Trouble, victim: usize, wait: Duration) -> Result<()> {
        let cluster = self.cluster.clone();
        let control_plane = cluster.control_plane();
        match trouble {
            Trouble::Kill => {
                if let Some(process) = self.candidates.take_process(victim) {
                    process.kill9()?;
                }
                tokio::time::sleep(wait / 4).await;
                self.candidates.start_process(victim).await?;
            }
            Trouble::Hang => {
                if let Some(process) = self.candidates.process(victim) {
                    let apps = self.candidates.connected(victim).await;
                    process.freeze()?;
                    tokio::time::sleep(wait).await;
                    self.thaw(victim, &process, &apps).await?;
                }
            }
            Trouble::Stop => {
                if let Some(process) = self.candidates.process(victim) {
                    process.sigterm()?;
                    process.ended().await?;
                }
                drop(self.candidates.take_process(victim));
                self.candidates.start_process(victim).await?;
            }
            Trouble::StepDown => self.candidates.step_down(victim).await?,
            Trouble::StoreHangs => {
                control_plane.freeze().await?;
                tokio::time::sleep(wait).await;
                control_plane.thaw().await?;
            }
            Trouble::HangInOutage => {
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
            Trouble::StoreDies => {
                control_plane.kill_api_server().await?;
                tokio::time::sleep(wait / 2).await;
                control_plane.start_api_server().await?;
            }
            Trouble::KillHolder => self.candidates.kill_holder()?,
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
            done.trouble,
            Trouble::StoreHangs | Trouble::StoreDies | Trouble::HangInOutage
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

    /// Says of the longest times without a leader what was done in them and shortly before.
    fn explain(&self, mut gaps: Vec<(Moment, Moment)>) -> Vec<String> {
        gaps.sort_unstable_by_key(|gap| Reverse(self.there_in(*gap)));
        let mut lines = Vec::new();
        for gap in gaps.into_iter().take(LONGEST_TOLD) {
            let (long, there) = (gap.1.since(gap.0), self.there_in(gap));
            lines.push(format!(
                "nobody led for {long:?}, {there:?} of it with the store"
            ));
            let is_near = |done: &&Done| done.from < gap.1 && gap.0 < done.until.after(BEFORE);
            for done in self.log.iter().filter(is_near) {
                let (before, after) = (gap.0.since(done.from), done.from.since(gap.0));
                let (what, long) = ((done.trouble, done.victim), done.until.since(done.from));
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
    // One more, because a belief that its app gave up at once is none in the end.
    let is_short = |storm: &Storm| storm.candidates.changes() <= changes_min;
    while now() < ends_at || (now() < ends_at_last && is_short(&storm)) {
        let (trouble, victim, wait) = storm.pick();
        println!("{trouble:?} of {victim} for {wait:?}");
        let from = now();
        storm.strike(trouble, victim, wait).await?;
        storm.note(Done {
            from,
            until: now(),
            trouble,
            victim,
        });
        let pause = storm.wait_of(1_500);
        tokio::time::sleep(pause).await;
    }
    // When all is well again, all run, and one leads.
    until_all_run(&namespace, ELECTION, CANDIDATES).await?;
    let (beliefs, given_back) = std::mem::take(&mut storm.candidates).beliefs().await?;
    println!("{}", storm.explain(gaps(&beliefs)).join("\n"));
    check_given_back(&beliefs, &given_back).map_err(anyhow::Error::msg)?;
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
