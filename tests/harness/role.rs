//! Our binary as a separate process, in one of its roles: its health, its log, its exit.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use super::pod::Pod;
use super::process::{Process, directory};
use super::wait::{PATIENCE, eventually};

/// How long a graceful exit may take: a kubelet's default grace period.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

/// How many lines of a log are shown when a test fails.
const LINES_SHOWN: usize = 100;

/// The directory for the logs of roles, once a test has chosen one.
static KEPT_LOGS: OnceLock<PathBuf> = OnceLock::new();

/// Keeps the logs of all roles that this process starts from now on, and does not print them.
pub(crate) fn keep_logs_in(directory: &Path) {
    // The first choice stays.
    let _already = KEPT_LOGS.set(directory.to_owned());
}

/// Returns a command for a program, started directly or by another program that executes it.
pub(super) fn through(by: &[String], program: &Path) -> Command {
    let Some((first, others)) = by.split_first() else {
        return Command::new(program);
    };
    let mut command = Command::new(first);
    command.args(others).arg(program);
    command
}

/// A running role. Dropping it kills it.
pub(crate) struct Role {
    /// The pod that it runs in.
    pub(crate) pod: Pod,
    /// The address of its health and metrics.
    pub(crate) admin_url: String,
    name: &'static str,
    process: Process,
}

impl Role {
    /// Starts a role in a pod, with further arguments, and waits until it listens. Returns the
    /// addresses, each with its API.
    pub(crate) async fn start(
        name: &'static str,
        mut command: Command,
        pod: &Pod,
    ) -> Result<(Self, Vec<(String, String)>)> {
        static STARTED: AtomicU32 = AtomicU32::new(0);

        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let logs = match KEPT_LOGS.get() {
            Some(kept) => kept,
            None => directory()?,
        };
        let log = logs.join(format!("{name}-{}-{number}.log", pod.name));
        command
            .arg("--kubeconfig")
            .arg(&pod.kubeconfig.path)
            .args(["--namespace", &pod.namespace])
            .args(["--pod-name", &pod.name, "--pod-uid", &pod.uid])
            .args(["--log-format", "json"]);
        let process = Process::spawn(&format!("leasehold {name}"), &mut command, &log)?;
        let what = format!("the {name} to listen");
        let listening = eventually(&what, PATIENCE, async || {
            let found = addresses(&process.log());
            // The admin address is logged last.
            let is_all = found.iter().any(|(what, _)| what == "admin");
            let ended = process.exited().ok().flatten().is_some();
            (is_all || ended).then_some(found)
        });
        let listening = listening.await.unwrap_or_default();
        let admin = listening.iter().find(|(what, _)| what == "admin");
        let (_, address) = admin
            .with_context(|| format!("the {name} does not listen:\n{}", process.last_words()))?;
        let role = Self {
            pod: pod.clone(),
            admin_url: format!("http://{address}"),
            name,
            process,
        };
        Ok((role, listening))
    }

    /// Requests `/healthz`, `/readyz` or `/metrics`.
    pub(crate) async fn admin(&self, path: &str) -> Result<(u16, String)> {
        let url = format!("{}{path}", self.admin_url);
        // No shared client: a shared role outlives the runtimes of the tests that use it.
        let response = reqwest::get(url).await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// Returns the value of a metric, by its name and labels as they are printed, or 0 if it is
    /// absent.
    pub(crate) async fn metric(&self, series: &str) -> Result<f64> {
        let (_, text) = self.admin("/metrics").await?;
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(value.map(str::parse).transpose()?.unwrap_or_default())
    }

    /// Returns the address of this API, from its log.
    pub(crate) fn address(&self, what: &str) -> Option<String> {
        let mut found = addresses(&self.log()).into_iter();
        found.find_map(|(api, address)| (api == what).then_some(address))
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> i32 {
        self.process.id()
    }

    /// Kills it without any notice.
    pub(crate) fn kill9(&self) -> Result<()> {
        self.process.kill()
    }

    /// Fails with the end of its output if it has exited.
    pub(crate) fn must_run(&self) -> Result<()> {
        self.process.must_run()
    }

    /// Makes it hang.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Continues a frozen process.
    pub(crate) fn thaw(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Sends SIGTERM to it.
    pub(crate) fn sigterm(&self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// Waits for its exit.
    pub(crate) async fn ended(&self) -> Result<ExitStatus> {
        self.process.wait(ENDS_WITHIN).await
    }

    /// Returns its output so far: its log, one JSON document per line, and what it printed.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// Returns its memory, in KiB.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        self.process.rss_kib()
    }

    /// Returns the peak of its memory, in KiB.
    pub(crate) fn peak_rss_kib(&self) -> Result<u64> {
        self.process.peak_rss_kib()
    }

    /// Returns its CPU time.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        self.process.cpu_time()
    }
}

impl Drop for Role {
    #[allow(
        clippy::print_stdout,
        reason = "the test runner shows it when the test fails"
    )]
    fn drop(&mut self) {
        if cfg!(test) && KEPT_LOGS.get().is_none() {
            let (name, pod) = (self.name, &self.pod.name);
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            // Thousands of lines hide the failure, and a stored output may be truncated.
            let left_out = lines.len().saturating_sub(LINES_SHOWN);
            let end = lines[left_out..].join("\n");
            println!("--- log of the {name} of {pod}, without its first {left_out} lines:\n{end}");
        }
    }
}

/// Returns the addresses in the log: (`locks`, `admin` or another, address).
pub(crate) fn addresses(log: &str) -> Vec<(String, String)> {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let found = lines.filter_map(|line: Value| {
        let fields = line.get("fields").unwrap_or(&line);
        let role = fields.get("api")?.as_str()?.to_owned();
        Some((role, fields.get("address")?.as_str()?.to_owned()))
    });
    found.collect()
}
