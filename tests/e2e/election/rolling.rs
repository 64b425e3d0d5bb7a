//! A rolling restart: each candidate is told to stop and is started anew, and the lead goes on.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::beliefs::{changes, longest_gap, terms};
use super::candidates::{Candidates, ELECTION};
use super::until_waiting;
use crate::harness::{Cluster, TakeOver};

const CANDIDATES: usize = 3;
const TTL_SECONDS: u64 = 4;
/// For how long nobody may believe to lead.
const GAP: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_leaves_nobody_in_the_lead_for_less_than_a_second() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("election-rolling").await?;
    let candidates = Candidates::start(&namespace, CANDIDATES, TTL_SECONDS).await?;
    for round in 0..2 {
        for number in 0..CANDIDATES {
            until_waiting(&namespace, ELECTION, CANDIDATES - 1).await?;
            let Some(process) = candidates.process(number) else {
                continue;
            };
            process.sigterm()?;
            // Its app goes on asking until the end.
            ensure!(process.ended().await?.success(), "{number} in {round}");
            drop(candidates.take_process(number));
            candidates.start_process(number).await?;
        }
    }
    until_waiting(&namespace, ELECTION, CANDIDATES - 1).await?;
    let terms = terms(&candidates.beliefs().await?).map_err(anyhow::Error::msg)?;
    let (changes, gap) = (changes(&terms), longest_gap(&terms));
    println!(
        "{} terms, {changes} changes, longest gap {gap:?}",
        terms.len()
    );
    ensure!(changes >= 3, "{terms:?}");
    ensure!(gap <= GAP, "{gap:?}: {terms:?}");
    Ok(())
}
