//! Records the history of one process: each request before it is sent, and its outcome.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::harness::now;
use crate::history::{Event, History, HistoryFile, Op, Phase, Process};

/// A process's history. Its times are the machine's true clock.
pub(crate) struct Recorder {
    process: Process,
    file: HistoryFile,
}

/// Returns the machine's true time, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    u64::try_from(now().elapsed_since_boot().as_nanos()).unwrap_or(u64::MAX)
}

impl Recorder {
    /// Starts the history of a process, in its own file in this directory.
    pub(crate) fn begin(directory: &Path, process: &str) -> Result<Self> {
        Ok(Self {
            process: Process::new(process),
            file: HistoryFile::open(&directory.join(format!("{process}.jsonl")))?,
        })
    }

    /// Records a request before it is sent. Returns the number that its outcome needs.
    pub(crate) fn invoke(&mut self, op: Op) -> Result<u64> {
        let event = self.process.invoke(now_ns(), op);
        self.file.append(&event)?;
        Ok(event.operation)
    }

    /// Records that the request had its effect.
    pub(crate) fn ok(&self, operation: u64, op: Op) -> Result<()> {
        self.file.append(&self.process.ok(now_ns(), operation, op))
    }

    /// Records that the request had no effect and never will.
    pub(crate) fn fail(&self, operation: u64, op: Op) -> Result<()> {
        let event = self.process.fail(now_ns(), operation, op);
        self.file.append(&event)
    }

    /// Records that the outcome is unknown.
    pub(crate) fn unknown(&self, operation: u64, op: Op) -> Result<()> {
        let event = self.process.unknown(now_ns(), operation, op);
        self.file.append(&event)
    }

    /// Records an event of now that is not a request.
    pub(crate) fn info(&mut self, op: Op) -> Result<()> {
        let event = self.process.info(now_ns(), op);
        self.file.append(&event)
    }
}

/// The time that sidecars, and apps that poll, may need to be scheduled on a machine that also
/// builds and checks models. On an idle machine this takes 0.1 s; 1.4 s were seen on a busy one.
const LOSS_TOLD_WITHIN: Duration = Duration::from_secs(4);

/// Records the claims of a run: one clock for all, one believer at a time, and every expired app is
/// notified.
pub(crate) fn claim(directory: &Path, seed: u64) -> Result<()> {
    Recorder::begin(directory, "run")?.info(Op::Run {
        seed,
        clock_bound_ns: 0,
        clock_rate_ppm: 0,
        exclusion: true,
        loss_told_within_ns: Some(u64::try_from(LOSS_TOLD_WITHIN.as_nanos())?),
    })
}

/// Records that a process was killed, not before this time: it no longer believes in its last
/// lease. The event is in a separate file, because the last line of the process's own file may be
/// torn.
pub(crate) fn record_kill(directory: &Path, process: &str, killed: u64) -> Result<()> {
    let own_file = directory.join(format!("{process}.jsonl"));
    if !own_file.try_exists()? {
        return Ok(()); // It was killed before it began, so it has never believed in a lease.
    }
    let history = History::read(&[own_file])?;
    let granted = history
        .events
        .iter()
        .rev()
        .find_map(|event| match &event.op {
            Op::Acquire { lease, .. } if event.phase == Phase::Ok => lease.clone(),
            _ => None,
        });
    let (Some(lease), Some(last)) = (granted, history.events.last()) else {
        return Ok(());
    };
    let death = Event {
        at: killed.max(last.at),
        process: process.to_owned(),
        operation: last.operation + 1,
        phase: Phase::Info,
        op: Op::believes_end(&lease),
    };
    let file = HistoryFile::open(&directory.join(format!("{process}-killed.jsonl")))?;
    file.append(&death)
}

#[test]
fn fault_app_killed_before_its_first_record_held_nothing() -> Result<()> {
    let directory = tempfile::tempdir()?;
    record_kill(directory.path(), "app-00-1", now_ns())?;
    assert_eq!(directory.path().read_dir()?.count(), 0);
    Ok(())
}
