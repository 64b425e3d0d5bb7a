//! Three minutes of random trouble: candidates are killed, hang, stop and step down, and the API
//! server goes away. Whatever happens, never two believe to lead at one time.
//!
//! `LEASEHOLD_SEED` repeats what is done to whom, `LEASEHOLD_STORM_SECONDS` says for how long. When
//! what was done takes effect is up to the machine.

use std::env;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::beliefs::{changes, longest_gap, terms};
use super::candidates::{Candidates, ELECTION};
use super::until_all_run;
use crate::harness::{Cluster, TakeOver, now};

const CANDIDATES: usize = 5;
const TTL_SECONDS: u64 = 3;
const LASTS_SECONDS: u64 = 180;
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
}

const TROUBLES: [Trouble; 13] = [
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
        let control_plane = self.cluster.control_plane();
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
                    process.freeze()?;
                    tokio::time::sleep(wait).await;
                    process.thaw()?;
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
                process.freeze()?;
                control_plane.freeze().await?;
                tokio::time::sleep(wait).await;
                if self.dice.bool() {
                    process.thaw()?;
                    tokio::time::sleep(wait / 4).await;
                }
                control_plane.thaw().await?;
                process.thaw()?;
            }
            Trouble::StoreDies => {
                control_plane.kill_api_server().await?;
                tokio::time::sleep(wait / 2).await;
                control_plane.start_api_server().await?;
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "three minutes and a control plane of its own: make elections"]
async fn never_two_candidates_believe_to_lead_whatever_happens() -> Result<()> {
    let seed = number_from_env("LEASEHOLD_SEED")?.unwrap_or_else(|| fastrand::u64(..));
    let seconds = number_from_env("LEASEHOLD_STORM_SECONDS")?.unwrap_or(LASTS_SECONDS);
    println!("LEASEHOLD_SEED={seed}");
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("election-storm").await?;
    let candidates = Candidates::start(&namespace, CANDIDATES, TTL_SECONDS).await?;
    until_all_run(&namespace, ELECTION, CANDIDATES).await?;
    let mut storm = Storm {
        cluster,
        candidates,
        dice: fastrand::Rng::with_seed(seed),
    };
    let ends_at = now().after(Duration::from_secs(seconds));
    while now() < ends_at {
        let (trouble, victim, wait) = storm.pick();
        println!("{trouble:?} of {victim} for {wait:?}");
        storm.strike(trouble, victim, wait).await?;
        let pause = storm.wait_of(1_500);
        tokio::time::sleep(pause).await;
    }
    // When all is well again, all run, and one leads.
    until_all_run(&namespace, ELECTION, CANDIDATES).await?;
    let beliefs = storm.candidates.beliefs().await?;
    let terms = terms(&beliefs).map_err(anyhow::Error::msg)?;
    let (changes, gap) = (changes(&terms), longest_gap(&terms));
    println!(
        "{} answers of a leader, {} terms, {changes} changes, longest gap {gap:?}",
        beliefs.len(),
        terms.len()
    );
    ensure!(
        changes as u64 >= seconds / CHANGE_EVERY,
        "{changes} changes: {terms:?}"
    );
    Ok(())
}
