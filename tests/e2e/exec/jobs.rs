//! `--once` and `--at-least-for` for eight processes that start at once, with and without sidecars, while
//! processes of exec are killed. The commands record what they do, and the checker of histories judges.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::LOCK;
use crate::harness::{Exec, Pod, TakeOver, own_file, signal};
use crate::history::{Event, History, Op, Process};
use crate::seed::seed;
use crate::support::{BINARY, Pair, tell};

const ROUNDS: usize = 50;
const EXECS: usize = 8;
const AT_LEAST: Duration = Duration::from_millis(100);
/// The resolution of /proc/uptime, which is on the clock of the checker.
const RESOLUTION: Duration = Duration::from_millis(10);

/// Records each moment at which it works.
const SCRIPT: &str = r#"
log() { read up idle </proc/uptime; echo "$1 $LEASEHOLD_LEASE_ID $LEASEHOLD_TOKEN $up $KEY" >>FOLDER/runs; }
log begin
for n in 1 2 3; do sleep 0.01; log works; done
log end"#;

/// What one command did.
#[derive(Clone, Debug)]
struct Run {
    key: String,
    token: u64,
    begun: Duration,
    /// When it was last seen to work.
    worked: Duration,
    has_ended: bool,
}

struct Rig {
    pair: Pair,
    pods: Vec<Pod>,
    folder: PathBuf,
    random: fastrand::Rng,
    killed: usize,
}

impl Rig {
    async fn start(name: &str) -> Result<Self> {
        let pair = Pair::start(name, TakeOver::Peer, 15).await?;
        // A pod may have two entries in a queue, and those of a killed exec stay for a moment.
        let mut pods = vec![];
        for name in ["c", "d", "e", "f"] {
            pods.push(pair.namespace.pod(name).await?);
        }
        let folder = own_file(name)?;
        std::fs::create_dir(&folder)?;
        Ok(Self {
            pair,
            pods,
            folder,
            random: fastrand::Rng::with_seed(seed()),
            killed: 0,
        })
    }

    /// Starts six execs beside two sidecars and two without one, kills a process of one of them, and waits
    /// for the others. Returns whether one was killed.
    async fn round(&mut self, round: usize, flags: &[&str]) -> Result<bool> {
        let script = SCRIPT
            .replace("FOLDER", &self.folder.display().to_string())
            .replace("$KEY", &format!("k{round}"));
        let flags = [&["--lock", LOCK], flags].concat();
        let mut execs = vec![];
        for pod in &self.pods[round % 2 * 2..][..2] {
            execs.push(Exec::alone(BINARY, &pod.kubeconfig, &flags, &script)?);
        }
        for sidecar in [&self.pair.a, &self.pair.b]
            .into_iter()
            .cycle()
            .take(EXECS - 2)
        {
            execs.push(Exec::start(BINARY, sidecar, &flags, &script)?);
        }
        let victim = execs.swap_remove(self.random.usize(..EXECS));
        tokio::time::sleep(Duration::from_millis(self.random.u64(..600))).await;
        let is_running = !victim.is_over()?;
        if self.random.bool() {
            victim.kill9_front()?;
        } else if let Some(keeper) = victim.keeper() {
            signal(keeper, Signal::KILL)?;
        }
        self.killed += usize::from(is_running);
        for exec in execs {
            exec.ends_with(0).await?;
        }
        Ok(is_running)
    }

    /// Returns what the commands did, by their leases.
    fn runs(&self) -> Result<BTreeMap<String, Run>> {
        runs(&self.folder.join("runs"))
    }
}

fn runs(file: &Path) -> Result<BTreeMap<String, Run>> {
    let mut runs = BTreeMap::new();
    for line in std::fs::read_to_string(file)?.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, lease, token, uptime, key] = words[..] else {
            anyhow::bail!("{line}");
        };
        let at = Duration::try_from_secs_f64(uptime.parse()?)?;
        let run = runs.entry(lease.to_owned()).or_insert(Run {
            key: key.to_owned(),
            token: token.parse()?,
            begun: at,
            worked: at,
            has_ended: false,
        });
        run.worked = at;
        run.has_ended |= what == "end";
    }
    Ok(runs)
}

/// Returns the history of the runs: each believes from its begin until it was last seen to work.
fn history(runs: &BTreeMap<String, Run>) -> History {
    let mut events: Vec<Event> = vec![];
    for (lease, run) in runs {
        let (begun, worked) = (nanoseconds(run.begun), nanoseconds(run.worked));
        let mut process = Process::new(lease);
        let asked = process.invoke(begun, Op::acquire(LOCK));
        let granted = Op::granted(LOCK, lease, run.token, worked);
        let got = process.ok(begun, asked.operation, granted);
        let ending = process.invoke(worked, Op::release(lease));
        events.extend([asked, got, ending]);
    }
    History::of(events)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A command that was killed after its last line, and before the record of its key, has succeeded without
/// a record. So only rounds with a killed exec may have two runs.
#[tokio::test(flavor = "multi_thread")]
async fn command_with_a_key_succeeds_once() -> Result<()> {
    let mut rig = Rig::start("exec-once").await?;
    let mut has_kill = vec![];
    for round in 0..ROUNDS {
        let key = format!("k{round}");
        has_kill.push(rig.round(round, &["--once", &key]).await?);
        let of_round: Vec<Run> = rig
            .runs()?
            .into_values()
            .filter(|run| run.key == key)
            .collect();
        let ended = of_round.iter().filter(|run| run.has_ended).count();
        let most = 1 + usize::from(has_kill[round]);
        ensure!((1..=most).contains(&of_round.len()), "{key}: {of_round:?}");
        ensure!((1..=most).contains(&ended), "{key}: {of_round:?}");
    }
    let runs = rig.runs()?;
    let summary = history(&runs).check()?;
    ensure!(summary.leases == runs.len(), "{summary:?}");
    tell(&format!(
        "measured: {} runs of {ROUNDS} keys by {} execs, {} of them killed",
        runs.len(),
        ROUNDS * EXECS,
        rig.killed
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_is_kept_for_the_least_time() -> Result<()> {
    let mut rig = Rig::start("exec-least").await?;
    let at_least = format!("{}ms", AT_LEAST.as_millis());
    for round in 0..ROUNDS {
        rig.round(round, &["--at-least-for", &at_least]).await?;
    }
    let runs = rig.runs()?;
    let summary = history(&runs).check()?;
    ensure!(summary.leases == runs.len(), "{summary:?}");
    ensure!(runs.len() >= ROUNDS * (EXECS - 1), "{} runs", runs.len());
    let mut begun: Vec<&Run> = runs.values().collect();
    begun.sort_by_key(|run| run.token);
    // Killed execs release at once.
    let early = begun.windows(2).filter(|two| {
        let pause = two[1].begun.saturating_sub(two[0].begun);
        pause + RESOLUTION < AT_LEAST
    });
    let early = early.count();
    ensure!(early <= rig.killed, "{early} of {} killed", rig.killed);
    tell(&format!(
        "measured: {} runs, {} of {} execs killed, {early} released early",
        runs.len(),
        rig.killed,
        ROUNDS * EXECS
    ))
}
