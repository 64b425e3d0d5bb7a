//! One pod with its sidecar and its apps, each a process that can be killed, stopped and restarted.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::app;
use crate::clock::Clock;
use crate::harness::{Pod, Process, Proxy, Sidecar, own_port};
use crate::history::{Event, Op, Phase};
use crate::network::Network;
use crate::recorder::{now_ns, record_kill};
use crate::stops::Stops;
use crate::world::{BINARY, TTL_SECONDS};

/// A pod. Its address stays the same when its sidecar is restarted.
pub(crate) struct TestPod {
    pod: Pod,
    /// The proxy between its sidecar and the API server.
    pub(crate) proxy: Proxy,
    /// The clock of its sidecar; the true time if absent.
    pub(crate) clock: Option<Clock>,
    /// Its own network.
    pub(crate) network: Option<Network>,
    port: u16,
    state: PathBuf,
    sidecar: Option<Sidecar>,
    /// The stops of its processes.
    stops: Stops,
    pub(crate) apps: Vec<AppSlot>,
}

/// One of a pod's apps, across restarts.
pub(crate) struct AppSlot {
    /// The configuration of its next process. The process number is added to the name.
    config: app::Config,
    name: String,
    lives: u64,
    process: Option<Process>,
}

/// The equipment of one pod.
pub(crate) struct Equipment {
    pub(crate) proxy: Proxy,
    pub(crate) clock: Option<Clock>,
    pub(crate) network: Option<Network>,
}

impl TestPod {
    /// Returns a pod with these apps. No process runs yet.
    pub(crate) fn new(
        pod: &Pod,
        equipment: Equipment,
        state: PathBuf,
        stops: Stops,
        apps: impl Iterator<Item = app::Config>,
    ) -> Result<Self> {
        std::fs::create_dir_all(&state)?;
        let port = own_port()?;
        let slot = |config: app::Config| AppSlot {
            name: config.name.clone(),
            config: app::Config {
                sidecar: format!("http://127.0.0.1:{port}"),
                served_by: stops.sidecar.clone(),
                ..config
            },
            lives: 0,
            process: None,
        };
        let Equipment {
            proxy,
            clock,
            network,
        } = equipment;
        Ok(Self {
            pod: pod.through(&proxy.url)?,
            proxy,
            clock,
            network,
            port,
            state,
            sidecar: None,
            apps: apps.map(slot).collect(),
            stops,
        })
    }

    /// Starts its sidecar, with the state directory of the previous one if `knowing`, or with an
    /// empty one.
    pub(crate) async fn start_sidecar(&mut self, knowing: bool) -> Result<()> {
        if !knowing {
            std::fs::remove_dir_all(&self.state)?;
            std::fs::create_dir_all(&self.state)?;
        }
        let mut through = self.inside();
        if let Some(clock) = &self.clock {
            through.extend(clock.through()?);
        }
        let state = self.state.to_str().context("a path of the test's")?;
        let launch = Sidecar::launch(BINARY, &self.pod)
            .session_ttl(TTL_SECONDS)
            .listen(&format!("127.0.0.1:{}", self.port), "127.0.0.1:0")
            .default_log()
            .arg("--state-dir")
            .arg(state)
            .through(&through);
        self.sidecar = Some(launch.start().await?);
        self.stops.sidecar_runs()
    }

    /// Returns the name of its sidecar in the history.
    pub(crate) fn sidecar_name(&self) -> &str {
        &self.stops.sidecar
    }

    /// Returns whether its next sidecar may get the state of the previous one.
    pub(crate) fn keeps_time(&self) -> bool {
        self.clock.as_ref().is_none_or(Clock::outlives_processes)
    }

    /// Returns its sidecar, if one runs.
    pub(crate) const fn sidecar(&self) -> Option<&Sidecar> {
        self.sidecar.as_ref()
    }

    /// Kills its sidecar, if one runs. Returns whether it did.
    pub(crate) fn kill_sidecar(&mut self) -> Result<bool> {
        let Some(sidecar) = self.sidecar.take() else {
            return Ok(false);
        };
        sidecar.must_run()?;
        self.stops.sidecar_stops()?;
        sidecar.kill9()?;
        Ok(true)
    }

    /// Stops its sidecar, if one runs.
    pub(crate) fn freeze_sidecar(&mut self) -> Result<()> {
        if let Some(sidecar) = &self.sidecar {
            self.stops.sidecar_stops()?;
            sidecar.freeze()?;
        }
        Ok(())
    }

    /// Continues its sidecar, if one runs.
    pub(crate) fn thaw_sidecar(&mut self) -> Result<()> {
        if let Some(sidecar) = &self.sidecar {
            sidecar.thaw()?;
            self.stops.sidecar_runs()?;
        }
        Ok(())
    }

    /// Starts one of its apps as a new process. Its clock is the true one, like the history's.
    pub(crate) fn start_app(&mut self, which: usize) -> Result<()> {
        let through = self.inside();
        let slot = &mut self.apps[which];
        slot.lives += 1;
        let config = app::Config {
            name: slot.process_name(),
            seed: slot.config.seed.wrapping_add(slot.lives),
            ..slot.config.clone()
        };
        let us = std::env::current_exe()?;
        let mut command = match through.split_first() {
            Some((first, others)) => {
                let mut command = Command::new(first);
                command.args(others).arg(us);
                command
            }
            None => Command::new(us),
        };
        command
            .args(["--exact", app::TEST, "--ignored", "--nocapture"])
            .env(app::CONFIG, serde_json::to_string(&config)?);
        let log = config.histories.join(format!("{}.log", config.name));
        slot.process = Some(Process::spawn("app", &mut command, &log)?);
        Ok(())
    }

    /// Returns the command prefix that starts a process in its network.
    fn inside(&self) -> Vec<String> {
        self.network
            .as_ref()
            .map(Network::through)
            .unwrap_or_default()
    }

    /// Stops one of its apps, if it runs.
    pub(crate) fn freeze_app(&mut self, which: usize) -> Result<()> {
        let slot = &self.apps[which];
        if let Some(process) = &slot.process {
            self.stops.stops(&slot.process_name())?;
            process.signal(Signal::STOP)?;
        }
        Ok(())
    }

    /// Continues one of its apps, if it exists.
    pub(crate) fn thaw_app(&mut self, which: usize) -> Result<()> {
        let slot = &self.apps[which];
        if let Some(process) = &slot.process {
            process.signal(Signal::CONT)?;
            self.stops.runs(&slot.process_name())?;
        }
        Ok(())
    }

    /// Kills one of its apps, if it runs. Returns whether it did. A killed app cannot record that
    /// its belief ended, so this function does.
    pub(crate) fn kill_app(&mut self, which: usize) -> Result<bool> {
        let slot = &mut self.apps[which];
        let Some(process) = slot.process.take() else {
            return Ok(false);
        };
        process.must_run()?;
        let before = now_ns();
        self.stops.stops(&slot.process_name())?;
        process.kill()?;
        record_kill(&slot.config.histories, &slot.process_name(), before)?;
        Ok(true)
    }
}

/// Reads enough of a file's end for its last line.
fn end_of(file: &Path) -> std::io::Result<String> {
    let mut file = File::open(file)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(1024)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

impl AppSlot {
    fn process_name(&self) -> String {
        format!("{}-{}", self.name, self.lives)
    }

    /// Returns whether a process of this name is one of this app's processes.
    pub(crate) fn is_process_of(&self, process: &str) -> bool {
        let name = process.rsplit_once('-').map(|(name, _life)| name);
        name == Some(self.name.as_str())
    }

    /// Returns its process, if it runs.
    pub(crate) const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Returns whether its last record is a write that it is about to send.
    pub(crate) fn has_write_in_hand(&self) -> bool {
        let name = format!("{}.jsonl", self.process_name());
        let end = end_of(&self.config.histories.join(name)).unwrap_or_default();
        let last = end.lines().last().unwrap_or_default();
        let event = serde_json::from_str::<Event>(last);
        let in_hand = |event: Event| {
            let is_write = matches!(event.op, Op::Write { .. } | Op::Append { .. });
            event.phase == Phase::Invoke && is_write
        };
        self.process.is_some() && event.is_ok_and(in_hand)
    }
}
