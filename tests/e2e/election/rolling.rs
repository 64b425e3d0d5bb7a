//! A rolling restart: each candidate is stopped and started again, and the lead is handed over.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::beliefs::{changes, check_released, gaps, longest_gap, terms};
use super::candidates::{Candidates, ELECTION};
use super::until_waiting;
use crate::harness::{Cluster, TakeOver};
use crate::plain_writes::PlainWrites;

const CANDIDATES: usize = 3;
/// A lead never expires here. The TTL is long enough to outlast a store that stalls for some seconds; a stopped
/// leader waits for its promises, so a longer one makes this test longer.
const TTL_SECONDS: u64 = 10;
/// For how long no candidate may believe to lead.
const GAP: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn rolling_restart_is_leaderless_for_less_than_a_second() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("election-rolling").await?;
    let writes = PlainWrites::start(&namespace).await?;
    let candidates = Candidates::start(&namespace, CANDIDATES, 0, TTL_SECONDS).await?;
    for number in 0..CANDIDATES {
        until_waiting(&namespace, ELECTION, CANDIDATES - 1).await?;
        let process = candidates.process(number).context("it runs")?;
        process.sigterm()?;
        // Its app continues to ask until the end.
        ensure!(process.ended().await?.success(), "{number}");
        drop(candidates.take_process(number));
        let args = ["--on-term=apps-ended"];
        candidates.start_process_with(number, &args).await?;
    }
    for number in 0..CANDIDATES {
        until_waiting(&namespace, ELECTION, CANDIDATES - 1).await?;
        // As the user of that flag promises.
        let process = candidates.end_app(number).context("it runs")?;
        process.sigterm()?;
        ensure!(process.ended().await?.success(), "{number}, at once");
        candidates.start_process(number).await?;
    }
    until_waiting(&namespace, ELECTION, CANDIDATES - 1).await?;
    let (beliefs, given_back) = candidates.beliefs().await?;
    check_released(&beliefs, &given_back).map_err(anyhow::Error::msg)?;
    let terms = terms(&beliefs).map_err(anyhow::Error::msg)?;
    let (changes, gap) = (changes(&terms), longest_gap(&beliefs));
    println!(
        "{} terms, {changes} changes, longest gap {gap:?}",
        terms.len()
    );
    // Each restart is the leader's, but for what a slow machine does to the order.
    ensure!(changes >= 5, "{terms:?}");
    for (from, until) in gaps(&beliefs) {
        let is_short = writes.must_be_within(GAP, from, until);
        is_short.with_context(|| format!("nobody led: {terms:?}"))?;
    }
    Ok(())
}
