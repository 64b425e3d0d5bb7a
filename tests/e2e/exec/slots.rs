//! `--concurrency`, with and without sidecars, while processes of exec are killed: no two commands run in one
//! slot at once, and the tokens of a slot rise.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::k8s::names::object_name;
use leasehold::protocol::ids::Resource;
use rustix::process::Signal;

use super::LOCK;
use crate::harness::{Exec, Pod, TakeOver, own_file, signal};
use crate::seed::seed;
use crate::support::{BINARY, Pair, tell, until_queued};

const ROUNDS: usize = 50;
const EXECS: usize = 8;
const SLOTS: usize = 3;

/// Runs under a lock of the operating system for its slot, which ends with the last process that has it.
const SCRIPT: &str = r#"
exec 9>>"FOLDER/slot-$LEASEHOLD_SLOT"
flock -n 9 || echo "slot $LEASEHOLD_SLOT" >>FOLDER/overlaps
echo "$LEASEHOLD_SLOT $LEASEHOLD_TOKEN" >>FOLDER/runs
sleep 0.1"#;

/// Starts the execs of a round: six beside two sidecars, and two without one.
fn start(pair: &Pair, alone: &[Pod], script: &str) -> Result<Vec<Exec>> {
    let slots = SLOTS.to_string();
    let flags = ["--lock", LOCK, "--concurrency", &slots];
    let sidecars = [&pair.a, &pair.b]
        .into_iter()
        .cycle()
        .take(EXECS - alone.len());
    let beside = sidecars.map(|sidecar| Exec::start(BINARY, sidecar, &flags, script));
    let alone = alone
        .iter()
        .map(|pod| Exec::alone(BINARY, &pod.kubeconfig, &flags, script));
    beside.chain(alone).collect()
}

/// Returns the tokens of each slot, in the order of their commands.
fn tokens(folder: &Path) -> Result<BTreeMap<String, Vec<u64>>> {
    let mut tokens: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for run in std::fs::read_to_string(folder.join("runs"))?.lines() {
        let (slot, token) = run.split_once(' ').context("a slot and a token")?;
        let of_slot = tokens.entry(slot.to_owned()).or_default();
        of_slot.push(token.parse()?);
    }
    Ok(tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_has_one_command_at_a_time() -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed());
    let pair = Pair::start("exec-slots", TakeOver::Peer, 15).await?;
    let folder = own_file("slots")?;
    std::fs::create_dir(&folder)?;
    let script = SCRIPT.replace("FOLDER", &folder.display().to_string());
    // A pod may have two entries in a queue, and those of a killed exec stay for a moment.
    let mut pods = vec![];
    for name in ["c", "d", "e", "f"] {
        pods.push(pair.namespace.pod(name).await?);
    }
    let mut killed = 0;
    for round in 0..ROUNDS {
        let mut execs = start(&pair, &pods[round % 2 * 2..][..2], &script)?;
        let victim = execs.swap_remove(random.usize(..EXECS));
        tokio::time::sleep(Duration::from_millis(random.u64(..400))).await;
        if random.bool() {
            victim.kill9_front()?;
            killed += 1;
        } else if let Some(keeper) = victim.keeper() {
            signal(keeper, Signal::KILL)?;
            killed += 1;
        }
        for exec in execs {
            exec.ends_with(0).await?;
        }
    }
    let overlaps = std::fs::read_to_string(folder.join("overlaps")).unwrap_or_default();
    ensure!(overlaps.is_empty(), "{overlaps}");
    let tokens = tokens(&folder)?;
    ensure!(tokens.len() == SLOTS, "{tokens:?}");
    ensure!(
        tokens
            .values()
            .all(|tokens| tokens.is_sorted_by(|a, b| a < b)),
        "{tokens:?}"
    );
    let runs: usize = tokens.values().map(Vec::len).sum();
    ensure!(runs >= ROUNDS * (EXECS - 1), "{runs} runs");
    for slot in 1..=SLOTS {
        let lock = Resource::parse(&format!("{LOCK}/slot-{slot}"))?;
        until_queued(&pair.namespace, &object_name(&lock), 0).await?;
    }
    tell(&format!(
        "measured: {runs} runs in {SLOTS} slots, {killed} of {} execs killed",
        ROUNDS * EXECS
    ))
}
