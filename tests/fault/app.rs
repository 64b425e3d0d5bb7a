//! An app as a separate process. It acquires locks from its pod's sidecar by every call of the API,
//! writes with the token to the guarded resource, renews and releases. It records each step in its
//! history.
//!
//! The process is this test binary, started again with the name of one test. It does what the
//! README requires of apps: it acts only within `validForMs`, counted from before it sent the
//! request, and never trusts a lease after its loss. It cannot prevent that time passes between
//! reading the clock and the arrival of a write. Against that there is the fence.

mod calls;
mod expired;
mod guarded;
mod hold;
mod work;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::history::Op;
use crate::recorder::{Recorder, now_ns};

/// The environment variable with the process's [`Config`].
pub(crate) const CONFIG: &str = "LEASEHOLD_FAULT_APP";
/// The test of this binary that the process runs.
pub(crate) const TEST: &str = "app::process";

/// The configuration of an app.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    /// Its name in the history.
    pub(crate) name: String,
    /// The address of its sidecar.
    pub(crate) sidecar: String,
    /// The sidecar's name in the history.
    pub(crate) served_by: String,
    /// The address of the registers.
    pub(crate) register: String,
    /// The resources that it locks and writes to.
    pub(crate) resources: Vec<String>,
    /// The seed of its decisions.
    pub(crate) seed: u64,
    /// The directory for its history.
    pub(crate) histories: PathBuf,
    /// The process ends when this file exists.
    pub(crate) finish: PathBuf,
    /// The rate of its pod's clock, in percent. The app shares its sidecar's clock, and records
    /// true time in its history.
    pub(crate) clock_percent: u64,
    /// The time by which it exceeds its deadline. A control: shows that this is detected.
    pub(crate) overtrust_ms: u64,
    /// Every piece of work takes long.
    pub(crate) works_long: bool,
}

/// A lease that the app holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    resource: String,
    lease: String,
    token: u64,
    /// On the machine's clock, like the other times.
    believes_until: u64,
    renew_at: u64,
}

/// The running app.
pub(crate) struct App {
    config: Config,
    recorder: Recorder,
    http: reqwest::Client,
    dice: fastrand::Rng,
    written: u64,
}

#[tokio::test]
#[ignore = "it is the process of an app, which the other tests start"]
async fn process() -> Result<()> {
    let config = std::env::var(CONFIG).with_context(|| format!("{CONFIG} says what to do"))?;
    let config: Config = serde_json::from_str(&config)?;
    let mut app = App {
        recorder: Recorder::begin(&config.histories, &config.name)?,
        http: reqwest::Client::new(),
        dice: fastrand::Rng::with_seed(config.seed),
        written: 0,
        config,
    };
    app.live().await
}

impl App {
    async fn live(&mut self) -> Result<()> {
        let served_by = Op::served_by(&self.config.served_by);
        self.recorder.info(served_by)?;
        while !self.config.finish.exists() {
            let which = self.dice.usize(..self.config.resources.len());
            let resource = self.config.resources[which].clone();
            match self.dice.u32(0..10) {
                0..=2 => self.take(&resource, 0).await?,
                3..=6 => {
                    let wait = self.dice.u64(1..=8);
                    self.take(&resource, wait).await?;
                }
                _ => self.hold(&resource).await?,
            }
            self.pause(20, 250).await;
        }
        Ok(())
    }

    /// Acquires a lock that lives by renewals, works under it, and releases it.
    async fn take(&mut self, resource: &str, wait_seconds: u64) -> Result<()> {
        if let Some(held) = self.acquire(resource, wait_seconds).await? {
            self.work(held).await?;
        }
        Ok(())
    }

    async fn pause(&mut self, from_ms: u64, to_ms: u64) {
        let pause = self.dice.u64(from_ms..to_ms);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    /// Returns until when the app may act, for an answer to a request of that time.
    fn belief(&self, sent: u64, valid_for_ms: u64) -> u64 {
        let told_ns = valid_for_ms * 1_000_000 * 100 / self.config.clock_percent;
        sent + told_ns + self.config.overtrust_ms * 1_000_000
    }
}

impl Held {
    fn is_believed(&self) -> bool {
        now_ns() < self.believes_until
    }
}
