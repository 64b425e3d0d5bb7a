//! etcd's own mutex, `concurrency.Mutex` (bench/etcdmutex), on an etcd without other clients.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::harness::{Binaries, Etcd, KubeVersion, Process, directory};

/// How long one measurement may take.
const LIMIT: Duration = Duration::from_secs(120);

/// A durable etcd, and the program that measures its mutex. Dropping this kills both.
pub(crate) struct EtcdMutex<'a> {
    binary: &'a str,
    etcd: Etcd,
    measured: usize,
    _process: Process,
}

/// The size of one measurement.
#[derive(Clone, Copy)]
pub(crate) struct Much {
    pub(crate) rounds: usize,
    pub(crate) hand_overs: usize,
    /// How long the waiter is queued before it gets the lock.
    pub(crate) in_line: Duration,
}

/// The program's output, in nanoseconds.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Measured {
    pub(crate) uncontended: Vec<u64>,
    pub(crate) same_process: Vec<u64>,
    pub(crate) two_processes: Vec<u64>,
}

impl<'a> EtcdMutex<'a> {
    pub(crate) async fn start(binary: &'a str) -> Result<Self> {
        let directory = directory()?.join("etcd-mutex");
        std::fs::create_dir(&directory)?;
        let binaries = Binaries::find(KubeVersion::from_env()?)?;
        let etcd = Etcd::new(&directory, &binaries, true);
        Ok(Self {
            binary,
            _process: etcd.start().await?,
            etcd,
            measured: 0,
        })
    }

    /// Measures in a new process, which does its own warm-up.
    pub(crate) async fn measure(&mut self, much: Much) -> Result<Measured> {
        self.measured += 1;
        let output = directory()?.join(format!("etcd-mutex-{}.json", self.measured));
        let mut command = Command::new(self.binary);
        command
            .args(["-endpoint", &self.etcd.endpoint()])
            .args(["-rounds", &much.rounds.to_string()])
            .args(["-hand-overs", &much.hand_overs.to_string()])
            .args(["-in-line", &format!("{}ms", much.in_line.as_millis())]);
        let process = Process::spawn("etcdmutex", &mut command, &output)?;
        let ended = process.wait(LIMIT).await?;
        ensure!(ended.success(), "etcdmutex: {}", process.last_words());
        serde_json::from_str(&process.log()).context("what etcdmutex printed")
    }
}
