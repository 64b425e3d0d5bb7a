//! The evaluation of a run: what its history must not contain, and what it must contain for the run
//! to be meaningful.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::harness::target_directory;
use crate::history::{History, Phase, Summary};

/// The duration that the minimum numbers refer to.
const TEN_MINUTES: Duration = Duration::from_secs(600);

/// The minimum number of take-overs in that time.
const TAKE_OVERS: usize = 50;

/// Returns the share of `wanted` for a run of that duration.
fn share_of(wanted: usize, lasted: Duration) -> usize {
    let seconds = |it: Duration| usize::try_from(it.as_secs()).unwrap_or(usize::MAX);
    wanted * seconds(lasted.min(TEN_MINUTES)) / seconds(TEN_MINUTES)
}

/// Returns whether a run of that duration has enough take-overs.
pub(crate) fn are_enough_taken_over(logs: &Path, lasted: Duration) -> Result<bool> {
    Ok(take_overs(logs)? >= share_of(TAKE_OVERS, lasted))
}

/// Returns the path of the linearizability checker, if it is built.
pub(crate) fn porcupine() -> PathBuf {
    target_directory().join("porcupine")
}

/// The events of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) kinds: usize,
    pub(crate) injections: usize,
    /// The number of grants that were ended because their holder was expired.
    pub(crate) take_overs: usize,
    /// The number of requests with an unknown outcome.
    pub(crate) unknown: usize,
    /// The summary of the history.
    pub(crate) told: Summary,
}

impl Counts {
    /// Counts the events in the history and in the operators' logs.
    pub(crate) fn of(history: &History, logs: &Path) -> Result<Self> {
        let events = history.events.iter();
        let unknown = events.filter(|event| event.phase == Phase::Unknown);
        Ok(Self {
            take_overs: take_overs(logs)?,
            unknown: unknown.count(),
            ..Self::default()
        })
    }

    /// Checks that enough happened: a run of ten minutes needs all of it, a shorter one its share.
    pub(crate) fn suffice(&self, lasted: Duration) -> Result<()> {
        for (what, seen, wanted) in [
            ("kinds", self.kinds, 24),
            ("injections", self.injections, 20),
            ("grants", self.told.grants, 500),
            ("take-overs", self.take_overs, TAKE_OVERS),
            ("entries in logs", self.told.appended, 500),
            ("reads", self.told.reads, 200),
            ("apps that waited for a notification", self.told.owed, 1),
        ] {
            let wanted = share_of(wanted, lasted);
            ensure!(
                seen >= wanted,
                "{seen} {what}, and {wanted} are needed: {self}"
            );
        }
        ensure!(self.told.refused > 0, "no stale write was refused: {self}");
        Ok(())
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary {
            events,
            leases,
            grants,
            overridden,
            accepted,
            refused,
            lost,
            owed,
            waited,
            reads,
            appended,
            ..
        } = self.told;
        let Self {
            kinds,
            injections,
            take_overs,
            unknown,
            ..
        } = self;
        write!(
            f,
            "{injections} injections of {kinds} kinds; {grants} grants with {leases} leases, {overridden} of these overridden by \
             people or a backup, {take_overs} take-overs, {lost} losses notified, {owed} of them \
             to apps that listened, for {waited:?} at most; {accepted} writes accepted, \
             {refused} refused as stale, {appended} entries \
             in logs, {reads} reads; {events} events, {unknown} unknown outcomes"
        )
    }
}

/// A task of ours that panicked is restarted; only the log shows the panic.
pub(crate) fn no_process_panicked(logs: &Path) -> Result<()> {
    for entry in logs.read_dir()? {
        let path = entry?.path();
        let log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        let panic = log.lines().find(|line| line.contains("panicked at"));
        ensure!(panic.is_none(), "{}: {panic:?}", path.display());
    }
    Ok(())
}

/// Counts the ended grants in the operators' audit logs, each once: a line may be repeated rather
/// than lost.
fn take_overs(logs: &Path) -> Result<usize> {
    let mut ends = BTreeSet::new();
    for entry in logs.read_dir()? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("operator-") {
            continue;
        }
        let log = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        ends.extend(lines.filter_map(|line: Value| {
            let is_end = line["action"] == "expire" || line["action"] == "reclaim";
            let id = line["id"].as_str()?.to_owned();
            is_end.then_some(id)
        }));
    }
    Ok(ends.len())
}
