//! `leasehold gate` on a real API server: an app starts when its pod leads, and not before.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::election::{candidate, until_all_run};
use crate::harness::{
    Cluster, Launch, Namespace, PATIENCE, Pod, Process, Sidecar, TakeOver, directory, eventually,
    now,
};
use crate::support::{BINARY, tell};

const LIMIT: Duration = PATIENCE;
const ELECTION: &str = "migration";
/// A lead must not expire while many tests run.
const TTL_SECONDS: u64 = 15;

/// A gate on its way, in the place of a pod's init container. Dropping it kills it.
struct Gate(Process);

impl Gate {
    fn at(url: &str) -> Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);

        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = directory()?.join(format!("gate-{number}.log"));
        let mut command = Command::new(BINARY);
        command
            .args(["gate", ELECTION, "--log-format=json"])
            .env("LEASEHOLD_URL", url);
        Process::spawn("leasehold gate", &mut command, &log).map(Self)
    }

    async fn said(&self, words: &str) -> Result<()> {
        self.said_times(words, 1).await
    }

    async fn said_times(&self, words: &str, times: usize) -> Result<()> {
        let what = format!("a gate to say {words:?}, {times} times");
        let said = eventually(&what, LIMIT, async || {
            (self.0.log().matches(words).count() >= times).then_some(())
        });
        said.await.with_context(|| self.0.last_words())
    }

    async fn exit_code(&self) -> Result<Option<i32>> {
        let ended = self.0.wait(LIMIT).await;
        Ok(ended.with_context(|| self.0.last_words())?.code())
    }

    async fn opens(&self) -> Result<()> {
        let code = self.exit_code().await?;
        ensure!(code == Some(0), "{code:?}: {}", self.0.last_words());
        Ok(())
    }

    fn is_closed(&self) -> Result<()> {
        let ended = self.0.exited()?;
        ensure!(ended.is_none(), "{ended:?}: {}", self.0.last_words());
        Ok(())
    }
}

/// A pod that is reached by a Unix socket too.
struct Reached {
    pod: Pod,
    socket: PathBuf,
}

impl Reached {
    async fn new(namespace: &Namespace, name: &str) -> Result<Self> {
        let socket = directory()?.join(format!("{}-{name}.sock", namespace.name));
        Ok(Self {
            pod: namespace.pod(name).await?,
            socket,
        })
    }

    fn launch(&self) -> Launch {
        let launch = Sidecar::launch(BINARY, &self.pod).session_ttl(TTL_SECONDS);
        let launch = launch.arg("--elect-always").arg(ELECTION);
        launch.arg("--unix-socket").arg(&text(&self.socket))
    }

    fn gate(&self) -> Result<Gate> {
        Gate::at(&format!("unix://{}", text(&self.socket)))
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn second_pods_gate_opens_after_the_first_stops() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("gate-order").await?;
    let a = candidate(&namespace.pod("a").await?, ELECTION, TTL_SECONDS).await?;
    let first = a.until_leader(ELECTION).await?;
    Gate::at(&a.url)?.opens().await?;

    let second = Reached::new(&namespace, "b").await?;
    let b = second.launch().start().await?;
    until_all_run(&namespace, ELECTION, 2).await?;
    let gate = second.gate()?;
    gate.said("pod a leads").await?;
    // The gate is not a lock: the leader still leads after it opened.
    let still = a.until_leader(ELECTION).await?;
    ensure!(still["leaseId"] == first["leaseId"], "{still}");
    gate.is_closed()?;

    a.sigterm()?;
    gate.opens().await?;
    let led = b.until_leader(ELECTION).await?;
    ensure!(led["fencingToken"].as_u64() > first["fencingToken"].as_u64());
    a.ended().await?;
    // The sidecar continues to lead, so another gate opens too.
    second.gate()?.opens().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_outlives_its_sidecar() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("gate-killed").await?;
    let a = candidate(&namespace.pod("a").await?, ELECTION, TTL_SECONDS).await?;
    a.until_leader(ELECTION).await?;
    let second = Reached::new(&namespace, "b").await?;
    // Neither the sidecar nor its socket exists yet.
    let gate = second.gate()?;
    gate.said("No such file").await?;
    let b = second.launch().start().await?;
    gate.said("pod a leads").await?;

    b.kill9()?;
    gate.said("onnection refused").await?;
    gate.is_closed()?;
    let b = second.launch().start().await?;
    gate.said_times("pod a leads", 2).await?;
    gate.is_closed()?;
    a.sigterm()?;
    gate.opens().await?;
    b.until_leader(ELECTION).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gate_of_a_hung_sidecar_stays_closed_while_another_pod_leads() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("gate-hung").await?;
    let first = Reached::new(&namespace, "a").await?;
    let a = first.launch().start().await?;
    a.until_leader(ELECTION).await?;
    let b = candidate(&namespace.pod("b").await?, ELECTION, TTL_SECONDS).await?;
    until_all_run(&namespace, ELECTION, 2).await?;
    a.freeze()?;
    let gate = first.gate()?;
    b.until_leader(ELECTION).await?;
    gate.is_closed()?;
    a.thaw()?;
    gate.said("pod b leads").await?;
    gate.is_closed()?;
    b.sigterm()?;
    gate.opens().await?;
    a.until_leader(ELECTION).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn gate_ends_at_once_on_sigterm() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("gate-signal").await?;
    let a = candidate(&namespace.pod("a").await?, ELECTION, TTL_SECONDS).await?;
    a.until_leader(ELECTION).await?;
    let second = Reached::new(&namespace, "b").await?;
    let _b = second.launch().start().await?;
    until_all_run(&namespace, ELECTION, 2).await?;
    let gate = second.gate()?;
    gate.said("pod a leads").await?;
    let before = now();
    gate.0.signal(Signal::TERM)?;
    let code = gate.exit_code().await?;
    let took = now().since(before);
    ensure!(code == Some(1), "{code:?}");
    tell(&format!(
        "measured: a gate ended {took:?} after its SIGTERM"
    ))?;
    // It is the sidecar that runs, and it does so with or without a gate.
    until_all_run(&namespace, ELECTION, 2).await
}
