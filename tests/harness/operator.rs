//! Our operator as a separate process, with the operator's own rights.

use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use super::pod::Pod;
use super::process::{Process, directory};
use super::sidecar::addresses;
use super::wait::eventually;

/// How long a start or an orderly end may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A running operator. Dropping it kills it.
pub(crate) struct Operator {
    /// The pod that it runs in.
    pub(crate) pod: Pod,
    /// Where its health and metrics are.
    pub(crate) admin_url: String,
    process: Process,
}

impl Operator {
    /// Starts one in a pod of the operator's, with further arguments, and waits until it listens.
    /// `binary` is ours; who includes this knows its path.
    pub(crate) async fn start(binary: &str, pod: &Pod, args: &[&str]) -> Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);

        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = directory()?.join(format!("operator-{}-{number}.log", pod.name));
        let mut command = Command::new(binary);
        command
            .arg("operator")
            .args(["--admin-listen", "127.0.0.1:0"])
            .arg("--kubeconfig")
            .arg(&pod.kubeconfig.path)
            .args(["--namespace", &pod.namespace])
            .args(["--pod-name", &pod.name, "--pod-uid", &pod.uid])
            .args(["--log-format", "json"])
            .args(args);
        let process = Process::spawn("leasehold operator", &mut command, &log)?;
        let listening = eventually("the operator to listen", LIMIT, async || {
            let found = addresses(&process.log()).into_iter().next();
            let ended = process.exited().ok().flatten().is_some();
            (found.is_some() || ended).then_some(found)
        });
        let (_, address) = listening
            .await?
            .with_context(|| format!("the operator does not listen:\n{}", process.last_words()))?;
        Ok(Self {
            pod: pod.clone(),
            admin_url: format!("http://{address}"),
            process,
        })
    }

    /// A call of `/healthz`, `/readyz` or `/metrics`.
    pub(crate) async fn admin(&self, path: &str) -> Result<(u16, String)> {
        let url = format!("{}{path}", self.admin_url);
        // One that is shared outlives the runtimes of the tests that ask it.
        let response = reqwest::get(url).await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// The value of a metric, by its name and labels as they are written; 0 where it is absent.
    pub(crate) async fn metric(&self, series: &str) -> Result<f64> {
        let (_, text) = self.admin("/metrics").await?;
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(value.map(str::parse).transpose()?.unwrap_or_default())
    }

    /// Waits until it is the active one and has seen everything.
    pub(crate) async fn until_active(&self) -> Result<()> {
        let what = format!("operator {} to be active", self.pod.name);
        eventually(&what, Duration::from_secs(60), async || {
            let leads = self.metric("leasehold_operator_leading").await.ok()?;
            let synced = self.metric("leasehold_operator_synced").await.ok()?;
            (leads > 0.0 && synced > 0.0).then_some(())
        })
        .await
    }

    /// The lines of its audit log so far.
    pub(crate) fn audit(&self) -> Vec<Value> {
        let log = self.process.log();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines
            .filter(|line| line["schema"] == "leasehold.dev/audit/v1")
            .collect()
    }

    /// Kills it; it has no time to say anything.
    pub(crate) fn kill9(&self) -> Result<()> {
        self.process.kill()
    }

    /// Makes it hang.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Lets a frozen one go on.
    pub(crate) fn thaw(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Asks it to end.
    pub(crate) fn sigterm(&self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) -> Result<ExitStatus> {
        self.process.wait(LIMIT).await
    }

    /// All that it has said so far.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// Its memory, in KiB.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        self.process.rss_kib()
    }

    /// The most that its memory ever was, in KiB.
    pub(crate) fn peak_rss_kib(&self) -> Result<u64> {
        self.process.peak_rss_kib()
    }

    /// How long it has computed.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        self.process.cpu_time()
    }
}

impl Drop for Operator {
    #[allow(
        clippy::print_stdout,
        reason = "the test runner shows it when the test fails"
    )]
    fn drop(&mut self) {
        if cfg!(test) {
            println!("--- log of operator {}:\n{}", self.pod.name, self.log());
        }
    }
}
