//! Writes records: first the line of the audit log, then the Event. Each is written once, as far as
//! that can be known.
//!
//! The names of the Events show what was recorded. A replica that becomes active lists the existing
//! Events first. So it repeats only what its predecessor may not have recorded.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::random::Random;
use crate::store::StoreError;
use crate::store::cluster::{Event, EventStore};
use crate::store::fleet::ObjectRef;

use super::audit::AuditRecord;
use super::backoff::backoff;
use super::ports::{AuditLog, Ports};

/// The maximum number of concurrent writes; urgent work has other tasks.
const IN_FLIGHT_MAX: usize = 4;
/// How often the write of an Event is tried. By then the line is written, and the incident is in
/// the lock.
const WRITE_ATTEMPTS: u32 = 8;
/// After how many failed lists everything is recorded again: each line has an id, and a duplicate
/// line is better than a missing one.
const LIST_ATTEMPTS: u32 = 5;
/// The maximum number of pending records. Others are dropped: they are still in the locks, and are
/// found there when the pending ones are written.
const PENDING_MAX: usize = 10_000;
/// How many names are remembered before those without a current record are forgotten.
const RECORDED_MAX: usize = 100_000;

/// The records to write.
#[derive(Default)]
pub(super) struct Recorder {
    pending: VecDeque<AuditRecord>,
    /// The names of records that are written or pending; incomplete until the existing Events are
    /// listed.
    recorded: BTreeSet<ObjectRef>,
    /// How many names were left when obsolete ones were last forgotten.
    retained: usize,
    /// Whether a record was dropped.
    has_overflowed: bool,
    listing: Listing,
    failed_lists: u32,
    in_flight: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listing {
    #[default]
    NotStarted,
    Running,
    Done,
}

/// The result of a finished task.
pub(super) enum Finished {
    Listed(Result<BTreeSet<ObjectRef>, StoreError>),
    Written { is_written: bool, took: Duration },
}

/// A task to spawn.
pub(super) type Task = futures::future::BoxFuture<'static, Finished>;

impl Recorder {
    /// Adds a record, unless it is already recorded. Returns whether it was added.
    pub(super) fn record(&mut self, record: AuditRecord) -> bool {
        if self.recorded.contains(&event_ref(&record)) {
            return false;
        }
        if self.pending.len() >= PENDING_MAX {
            self.has_overflowed = true;
            return false;
        }
        self.recorded.insert(event_ref(&record));
        self.pending.push_back(record);
        true
    }

    /// Returns whether it needs all current records: to find dropped ones, or to forget obsolete
    /// names.
    pub(super) fn needs_replay(&self) -> bool {
        let finds_room = self.has_overflowed && self.pending.is_empty();
        finds_room || self.recorded.len() > RECORDED_MAX.max(2 * self.retained)
    }

    /// Replays all current records.
    pub(super) fn replay(&mut self, everything: impl Iterator<Item = AuditRecord>) {
        let recorded_before = std::mem::take(&mut self.recorded);
        self.recorded = self.pending.iter().map(event_ref).collect();
        self.has_overflowed = false;
        for record in everything {
            let object_ref = event_ref(&record);
            if recorded_before.contains(&object_ref) {
                self.recorded.insert(object_ref);
            } else {
                self.record(record);
            }
        }
        self.retained = self.recorded.len();
    }

    /// Forgets everything: another replica records now, or the existing Events will be listed
    /// again.
    pub(super) fn reset(&mut self) {
        *self = Self {
            in_flight: self.in_flight,
            ..Self::default()
        };
    }

    /// Starts the tasks that are due.
    pub(super) fn start(&mut self, ports: &Ports, mut spawn: impl FnMut(Task)) {
        match self.listing {
            Listing::NotStarted => {
                self.listing = Listing::Running;
                let (events, random) = (ports.events.clone(), ports.random.clone());
                let failures = self.failed_lists;
                spawn(Box::pin(async move {
                    let listed = events.list_own().await;
                    if listed.is_err() {
                        tokio::time::sleep(backoff(4 + failures, &random)).await;
                    }
                    Finished::Listed(listed)
                }));
            }
            Listing::Running => {}
            Listing::Done => {
                while self.in_flight < IN_FLIGHT_MAX
                    && let Some(record) = self.pending.pop_front()
                {
                    self.in_flight += 1;
                    spawn(write_record(ports, record));
                }
            }
        }
    }

    pub(super) fn finish(&mut self, finished: Finished) {
        match finished {
            Finished::Listed(Ok(listed)) => {
                self.pending
                    .retain(|record| !listed.contains(&event_ref(record)));
                self.recorded.extend(listed);
                self.listing = Listing::Done;
            }
            Finished::Listed(Err(error)) => {
                self.failed_lists += 1;
                let is_last = self.failed_lists >= LIST_ATTEMPTS;
                tracing::warn!(
                    %error, retrying = !is_last, "listing Events failed; duplicates are possible"
                );
                self.listing = if is_last {
                    Listing::Done
                } else {
                    Listing::NotStarted
                };
            }
            Finished::Written { .. } => {
                self.in_flight = self.in_flight.saturating_sub(1);
            }
        }
    }
}

fn event_ref(record: &AuditRecord) -> ObjectRef {
    ObjectRef {
        namespace: record.event.object_ref.namespace.clone(),
        name: record.event.name.clone(),
    }
}

/// Writes the line first: after a crash in between no Event exists, and the next replica writes
/// both again.
fn write_record(ports: &Ports, record: AuditRecord) -> Task {
    let (events, audit) = (ports.events.clone(), ports.audit.clone());
    let (clock, random) = (ports.clock.clone(), ports.random.clone());
    Box::pin(async move {
        let began = clock.now();
        if let Some(line) = &record.line {
            write_line(&*audit, &line.to_string(), &random).await;
        }
        let is_written = write(&*events, &record.event, &random).await;
        Finished::Written {
            is_written,
            took: clock.now().since(began),
        }
    })
}

/// Writes a line, without a time limit: an Event without its line would mark it as recorded.
async fn write_line(audit: &dyn AuditLog, line: &str, random: &Random) {
    let mut failures = 0;
    while let Err(error) = audit.write(line).await {
        tracing::error!(%error, %line, "writing the audit log failed; retrying");
        tokio::time::sleep(backoff(4 + failures, random)).await;
        failures += 1;
    }
}

/// Returns whether the Event was written.
async fn write(events: &dyn EventStore, event: &Event, random: &Random) -> bool {
    let mut failures = 0;
    loop {
        match events.write(event).await {
            Err(error) if failures >= WRITE_ATTEMPTS => {
                tracing::warn!(
                    kind = ?event.regarding, object = %event.object_ref, reason = event.reason, %error,
                    "writing an Event failed"
                );
                return false;
            }
            // A missing permission may be granted meanwhile.
            Err(_) => {
                tokio::time::sleep(backoff(failures, random)).await;
                failures += 1;
            }
            Ok(()) => return true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::time::WallTime;
    use crate::store::cluster::Regarding;

    fn record(number: usize) -> AuditRecord {
        let event = Event {
            name: format!("note-{number}").into(),
            regarding: Regarding::Lock,
            object_ref: ObjectRef {
                namespace: "n".into(),
                name: "lock".into(),
            },
            uid: "uid".into(),
            pod: None,
            is_warning: false,
            reason: "",
            action: "",
            message: String::new(),
            at: WallTime(0),
        };
        AuditRecord { line: None, event }
    }

    fn names(recorder: &mut Recorder) -> Vec<String> {
        let pending = recorder.pending.drain(..);
        pending
            .map(|record| record.event.name.to_string())
            .collect()
    }

    #[test]
    fn records_over_the_limit_are_replayed_once_there_is_room() {
        let mut recorder = Recorder::default();
        let all = PENDING_MAX + 2;
        for number in 0..all {
            recorder.record(record(number));
        }
        assert_eq!(recorder.pending.len(), PENDING_MAX);
        assert!(!recorder.needs_replay(), "still at the limit");
        names(&mut recorder);
        assert!(recorder.needs_replay());
        recorder.replay((0..all).map(record));
        let last = [PENDING_MAX, PENDING_MAX + 1].map(|number| format!("note-{number}"));
        assert_eq!(names(&mut recorder), last);
        assert!(!recorder.needs_replay());
    }

    #[test]
    fn old_records_are_dropped_and_none_is_written_twice() {
        let mut recorder = Recorder::default();
        for number in 0..=RECORDED_MAX {
            recorder.record(record(number));
            recorder.pending.clear();
        }
        assert!(recorder.needs_replay());
        recorder.replay((RECORDED_MAX - 10..=RECORDED_MAX).map(record));
        assert_eq!(names(&mut recorder), Vec::<String>::new());
        assert_eq!(recorder.recorded.len(), 11);
        recorder.record(record(RECORDED_MAX));
        assert_eq!(names(&mut recorder), Vec::<String>::new());
    }
}
