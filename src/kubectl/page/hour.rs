//! Contention and hold times of the last hour, as the page's server has observed them.
//!
//! All times are those at which a change was observed, on one clock: no two clocks are compared. A grant whose beginning
//! or end was not observed has no known length, and is not counted as a hold.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::kubectl::format::human::human;
use crate::kubectl::session_health::since;
use crate::kubectl::world::LockSeen;
use crate::text::escape;

/// How long changes are kept.
const WINDOW: Duration = Duration::from_secs(3600);
/// The most changes that are kept. With more, the observation is shorter than an hour, and says so.
const CHANGES_MAX: usize = 200_000;
/// The most locks of the table.
const LOCKS_MAX: usize = 100;

/// The observation.
#[derive(Debug)]
pub struct Hour {
    since: Timestamp,
    /// Until when the API server is known to have been watched.
    until: Timestamp,
    locks: BTreeMap<Arc<Key>, Current>,
    /// The earliest first.
    changes: VecDeque<Observation>,
}

/// A lock.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    namespace: String,
    name: String,
}

/// Where a state comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A list: what happened before it was not observed.
    List,
    /// A watch, which shows each change.
    Watch,
}

#[derive(Debug)]
struct Observation {
    at: Timestamp,
    lock: Arc<Key>,
    change: Change,
}

/// Something that has ended or begun.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// A grant began.
    Granted,
    /// A grant ended that had lasted so long.
    Held(Duration),
    /// The queue became empty after so long.
    Contended(Duration),
    /// The queue's length has changed. This is the longer one of the two.
    Queued(usize),
}

/// The present state of a lock.
#[derive(Debug, Default)]
struct Current {
    resource: String,
    grant: Option<String>,
    /// Since when, if its beginning was observed.
    granted_at: Option<Timestamp>,
    queue: usize,
    queued_since: Option<Timestamp>,
}

/// What was observed.
#[derive(Clone, Debug, Serialize)]
pub struct Observed {
    /// Since when.
    pub since: Timestamp,
    /// The most contended locks, then those with the most grants.
    pub locks: Vec<ObservedLock>,
}

/// What was observed of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedLock {
    /// The namespace of the lock object.
    pub namespace: String,
    /// The name of the lock object.
    pub name: String,
    /// The resource that the lock guards.
    pub resource: String,
    /// How many grants began.
    pub grants: usize,
    /// The median of the ended holds; empty without any.
    pub median_hold: String,
    /// The longest of the ended holds; empty without any.
    pub longest_hold: String,
    /// For how long pods waited; empty if none did.
    pub contended: String,
    /// The longest queue.
    pub longest_queue: usize,
}

impl Hour {
    /// Returns an observation that begins now.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self {
            since: now,
            until: now,
            locks: BTreeMap::new(),
            changes: VecDeque::new(),
        }
    }

    /// Records a state of a lock that is observed now.
    pub fn observe(&mut self, now: Timestamp, lock: &LockSeen, source: Source) {
        let Ok(status) = &lock.status else { return };
        let key = Key {
            namespace: lock.namespace.clone(),
            name: lock.name.clone(),
        };
        let known = self.locks.remove_entry(&key);
        let (key, mut current) = known.unwrap_or_else(|| (Arc::new(key), Current::default()));
        current.resource.clone_from(&lock.spec.resource);
        let grant = status.lease.as_ref().map(|lease| &lease.id);
        let unwatched = (source == Source::List).then_some(self.until);
        if let Some(until) = unwatched
            && let Some(change) = current.pause(until)
        {
            self.record(until, &key, change);
        }
        for change in current.update(now, grant, status.waiters.len(), source) {
            self.record(now, &key, change);
        }
        self.locks.insert(key, current);
        self.watched_until(now);
        self.forget(now);
    }

    /// Records that the watch shows the state as it is now.
    pub fn watched_until(&mut self, now: Timestamp) {
        self.until = self.until.max(now);
    }

    fn record(&mut self, at: Timestamp, lock: &Arc<Key>, change: Change) {
        self.changes.push_back(Observation {
            at,
            lock: lock.clone(),
            change,
        });
    }

    /// Records that a lock object does not exist any more. How its last hold ended is unknown.
    pub fn deleted(&mut self, namespace: &str, name: &str) {
        self.locks.remove(&Key {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        });
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some(first) = self.changes.front() {
            if self.changes.len() <= CHANGES_MAX && since(first.at, now) <= WINDOW {
                return;
            }
            self.since = self.since.max(first.at);
            self.changes.pop_front();
        }
    }

    /// Returns what was observed.
    #[must_use]
    pub fn observed(&self) -> Observed {
        let now = self.until;
        let hour_ago = now.checked_sub(WINDOW).unwrap_or(self.since);
        let begin = self.since.max(hour_ago);
        let mut totals: BTreeMap<&Key, Totals> = BTreeMap::new();
        for one in self.changes.iter().filter(|one| one.at >= begin) {
            totals.entry(&one.lock).or_default().add(one, begin);
        }
        for (key, current) in &self.locks {
            if let Some(queued_since) = current.queued_since {
                let total = totals.entry(key).or_default();
                total.contended += since(queued_since.max(begin), now);
                total.longest_queue = total.longest_queue.max(current.queue);
            }
        }
        let existing = totals.into_iter().filter_map(|(key, total)| {
            let current = self.locks.get(key)?;
            Some((key, &current.resource, total))
        });
        let mut existing: Vec<_> = existing.collect();
        existing.sort_by_key(|(_, _, total)| Reverse((total.contended, total.grants)));
        existing.truncate(LOCKS_MAX);
        let rows = existing.into_iter();
        Observed {
            since: begin,
            locks: rows
                .map(|(key, resource, total)| total.row(key, resource))
                .collect(),
        }
    }
}

impl Current {
    /// Ends the contention that was observed until then: what follows was not observed.
    fn pause(&mut self, until: Timestamp) -> Option<Change> {
        let since_when = self.queued_since.take()?;
        Some(Change::Contended(since(since_when, until)))
    }

    /// Changes to another state, and returns what has changed.
    fn update(
        &mut self,
        now: Timestamp,
        grant: Option<&String>,
        queue: usize,
        source: Source,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.grant.as_ref() != grant {
            let is_watched = source == Source::Watch;
            let held = self.granted_at.take().filter(|_| is_watched);
            changes.extend(held.map(|at| Change::Held(since(at, now))));
            if grant.is_some() && is_watched {
                changes.push(Change::Granted);
                self.granted_at = Some(now);
            }
            self.grant = grant.cloned();
        }
        if self.queue != queue {
            changes.push(Change::Queued(queue.max(self.queue)));
            self.queue = queue;
        }
        if queue > 0 {
            self.queued_since.get_or_insert(now);
        } else if let Some(at) = self.queued_since.take() {
            changes.push(Change::Contended(since(at, now)));
        }
        changes
    }
}

/// What a lock's changes add up to.
#[derive(Debug, Default)]
struct Totals {
    grants: usize,
    holds: Vec<Duration>,
    contended: Duration,
    longest_queue: usize,
}

impl Totals {
    fn add(&mut self, one: &Observation, begin: Timestamp) {
        match one.change {
            Change::Granted => self.grants += 1,
            Change::Held(lasted) => self.holds.push(lasted),
            // Only the part within the hour.
            Change::Contended(lasted) => self.contended += lasted.min(since(begin, one.at)),
            Change::Queued(length) => self.longest_queue = self.longest_queue.max(length),
        }
    }

    fn row(mut self, key: &Key, resource: &str) -> ObservedLock {
        self.holds.sort_unstable();
        let text =
            |duration: Option<&Duration>| duration.map_or_else(String::new, |one| precise(*one));
        ObservedLock {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            resource: escape(resource).into_owned(),
            grants: self.grants,
            median_hold: text(self.holds.get(self.holds.len() / 2)),
            longest_hold: text(self.holds.last()),
            contended: text(Some(&self.contended).filter(|one| !one.is_zero())),
            longest_queue: self.longest_queue,
        }
    }
}

/// Returns a duration in words, below ten seconds with tenths of a second.
fn precise(duration: Duration) -> String {
    if duration < Duration::from_secs(10) {
        return format!("{:.1}s", duration.as_secs_f64());
    }
    human(duration)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn lock(grant: Option<&str>, waiting: usize) -> LockSeen {
        let waiter = json!({"leaseId": "w", "ownerId": "w", "pod": "w", "podUid": "", "session": "w",
            "sessionTtlSeconds": 15, "queuedAt": "2026-01-01T00:00:00Z"});
        let mut status = json!({"token": 1, "waiters": vec![waiter; waiting]});
        if let Some(grant) = grant {
            status["holder"] = json!({"ownerId": "o", "pod": "p", "podUid": "", "session": "s",
                "sessionTtlSeconds": 15});
            status["lease"] = json!({"id": grant, "acquiredAt": "2026-01-01T00:00:00Z"});
        }
        LockSeen::read(&json!({"metadata": {"name": "x", "namespace": "n"},
            "spec": {"resource": "nightly"}, "status": status}))
    }

    fn only(hour: &mut Hour, now: Timestamp) -> ObservedLock {
        hour.watched_until(now);
        let mut observed = hour.observed().locks;
        assert_eq!(observed.len(), 1, "{observed:?}");
        observed.remove(0)
    }

    #[test]
    fn holds_and_contention_are_those_that_were_observed() {
        let mut hour = Hour::new(at(0));
        let mut observe = |second, grant, waiting| {
            hour.observe(at(second), &lock(grant, waiting), Source::Watch);
        };
        observe(10, Some("g1"), 0);
        observe(12, Some("g1"), 2);
        observe(20, Some("g2"), 1);
        observe(50, Some("g3"), 0);
        observe(54, None, 0);
        let row = only(&mut hour, at(60));
        assert_eq!((row.grants, row.longest_queue), (3, 2));
        assert_eq!((&*row.median_hold, &*row.longest_hold), ("10s", "30s"));
        assert_eq!(row.contended, "38s");
    }

    #[test]
    fn grant_from_a_list_is_not_counted_as_a_hold() {
        let mut hour = Hour::new(at(0));
        hour.observe(at(0), &lock(Some("g1"), 1), Source::List);
        hour.observe(at(5), &lock(None, 0), Source::Watch);
        let row = only(&mut hour, at(6));
        assert_eq!(
            (row.grants, &*row.longest_hold, &*row.contended),
            (0, "", "5.0s")
        );
        // A list after an interruption hides when the grant ended.
        hour.observe(at(10), &lock(Some("g2"), 0), Source::Watch);
        hour.observe(at(90), &lock(Some("g3"), 0), Source::List);
        let row = only(&mut hour, at(91));
        assert_eq!((row.grants, &*row.longest_hold), (1, ""));
    }

    #[test]
    fn queue_that_still_waits_is_counted_until_now() {
        let mut hour = Hour::new(at(0));
        hour.observe(at(0), &lock(Some("g1"), 3), Source::List);
        let row = only(&mut hour, at(30));
        assert_eq!((row.longest_queue, &*row.contended), (3, "30s"));
    }

    #[test]
    fn time_without_a_watch_is_not_counted() {
        let mut hour = Hour::new(at(0));
        hour.observe(at(0), &lock(Some("g1"), 1), Source::List);
        hour.watched_until(at(20));
        // Nothing was seen for ten minutes.
        hour.observe(at(620), &lock(Some("g1"), 2), Source::List);
        let row = only(&mut hour, at(630));
        assert_eq!((&*row.contended, row.longest_queue), ("30s", 2));
    }

    #[test]
    fn queue_from_before_the_hour_counts_until_it_shrinks() {
        let mut hour = Hour::new(at(0));
        hour.observe(at(0), &lock(Some("g1"), 5), Source::Watch);
        hour.observe(at(5_000), &lock(Some("g1"), 0), Source::Watch);
        let row = only(&mut hour, at(5_001));
        assert_eq!((&*row.contended, row.longest_queue), ("59m", 5));
    }

    #[test]
    fn changes_of_more_than_an_hour_ago_are_forgotten() {
        let mut hour = Hour::new(at(0));
        hour.observe(at(0), &lock(Some("g1"), 1), Source::Watch);
        hour.observe(at(10), &lock(None, 0), Source::Watch);
        hour.observe(at(3_700), &lock(Some("g2"), 0), Source::Watch);
        let row = only(&mut hour, at(3_701));
        assert_eq!((row.grants, &*row.contended), (1, ""));
        assert_eq!(hour.changes.len(), 1);
        assert_eq!(hour.observed().since, at(101));
    }

    #[test]
    fn deleted_lock_is_not_listed() {
        let mut hour = Hour::new(at(0));
        hour.observe(at(0), &lock(Some("g1"), 1), Source::Watch);
        hour.deleted("n", "x");
        assert!(hour.observed().locks.is_empty());
    }
}
