//! etcd: started on its own socket, backed up and restored.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::binaries::Binaries;
use super::process::Process;
use super::wait::{PATIENCE, eventually};

/// How long etcd may take to start or stop.
const LIMIT: Duration = PATIENCE;

/// The directory of an instance, and its programs.
pub(crate) struct Etcd {
    directory: PathBuf,
    binaries: Binaries,
    /// The number of restores. Each has its own data folder.
    restores: AtomicU32,
    /// Whether every write reaches the disk before it is acknowledged.
    durable: bool,
}

impl Etcd {
    pub(crate) fn new(directory: &Path, binaries: &Binaries, durable: bool) -> Self {
        Self {
            directory: directory.to_owned(),
            binaries: binaries.clone(),
            restores: AtomicU32::new(0),
            durable,
        }
    }

    /// Returns the endpoint that the API server connects to.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Starts etcd and waits until it accepts connections: without that, the API server retries
    /// only after a second.
    pub(crate) async fn start(&self) -> Result<Process> {
        // A killed process leaves its socket behind.
        let _absent = std::fs::remove_file(self.socket());
        let mut command = Command::new(&self.binaries.etcd);
        command
            .args(["--name=test", "--log-level=warn"])
            .arg(format!("--data-dir={}", self.data().display()))
            .arg(format!("--listen-client-urls={}", self.endpoint()))
            .arg("--advertise-client-urls=http://localhost:2379")
            .arg("--listen-peer-urls=http://127.0.0.1:0")
            .args(["--heartbeat-interval=10", "--election-timeout=100"]);
        if !self.durable {
            command.arg("--unsafe-no-fsync");
        }
        let process = Process::spawn("etcd", &mut command, &self.directory.join("etcd.log"))?;
        let up = eventually("a connection to etcd", LIMIT, async || {
            let socket = tokio::net::UnixStream::connect(self.socket()).await;
            socket.is_ok().then_some(())
        });
        up.await
            .map_err(|error| error.context(process.last_words()))?;
        Ok(process)
    }

    /// Shuts etcd down gracefully, so that everything is on disk.
    pub(crate) async fn stop(&self, process: Process) -> Result<()> {
        process.signal(Signal::TERM)?;
        process.wait(LIMIT).await?;
        Ok(())
    }

    /// Writes a backup of the running etcd.
    pub(crate) async fn snapshot(&self, name: &str) -> Result<PathBuf> {
        let file = self.directory.join(format!("{name}.snapshot"));
        let mut command = self.etcdctl(&["snapshot", "save"]);
        command.arg(&file);
        run(command).await?;
        Ok(file)
    }

    /// Removes a key without the API server, and returns its value, if any.
    pub(crate) async fn remove(&self, key: &str) -> Result<Option<String>> {
        let removed = run(self.etcdctl(&["del", "--prev-kv", key])).await?;
        // The output is the number of keys, then each key with its value.
        let mut lines = removed.splitn(3, '\n');
        let value = lines.nth(2).map(str::to_owned);
        ensure!(value.is_some() || removed.trim() == "0", "{removed}");
        Ok(value)
    }

    /// Compacts all history: older watches cannot continue.
    pub(crate) async fn compact(&self) -> Result<()> {
        let status = run(self.etcdctl(&["endpoint", "status", "--write-out=json"])).await?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        let revision = status[0]["Status"]["header"]["revision"]
            .as_u64()
            .context("etcd must say its revision")?;
        run(self.etcdctl(&["compact", &revision.to_string()])).await?;
        Ok(())
    }

    fn etcdctl(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.binaries.etcdctl);
        command
            .arg(format!("--endpoints={}", self.endpoint()))
            .args(args);
        command
    }

    /// Replaces the stopped etcd's data with a backup, as the runbook in docs/ describes; without
    /// `bump`, as the runbook warns against.
    pub(crate) async fn restore(&self, snapshot: &Path, bump: Option<u64>) -> Result<()> {
        self.restores.fetch_add(1, Ordering::Relaxed);
        let mut command = tokio::process::Command::new(&self.binaries.etcdutl);
        command
            .args(["snapshot", "restore"])
            .arg(snapshot)
            .arg(format!("--data-dir={}", self.data().display()))
            .args([
                "--name=test",
                "--initial-cluster=test=http://localhost:2380",
            ])
            .arg("--initial-advertise-peer-urls=http://localhost:2380");
        if let Some(revisions) = bump {
            command.arg(format!("--bump-revision={revisions}"));
            command.arg("--mark-compacted");
        }
        run(command).await?;
        Ok(())
    }

    fn data(&self) -> PathBuf {
        let restores = self.restores.load(Ordering::Relaxed);
        self.directory.join(format!("etcd{restores}"))
    }

    fn socket(&self) -> PathBuf {
        self.directory.join("etcd.sock")
    }
}

/// Runs a command that must succeed, and returns its output.
async fn run(mut command: tokio::process::Command) -> Result<String> {
    let output = command.kill_on_drop(true).output().await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{:?}: {said}", command.as_std());
    Ok(String::from_utf8(output.stdout)?)
}
