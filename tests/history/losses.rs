//! What an app is notified about its lease: no confirmation after its end, no earlier deadline than
//! before, and each loss in time. n log n.

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::EVERYONE;
use super::file::History;
use super::joined::{Joined, Lease, Told};
use super::violation::Violation;

/// Validity is returned in whole milliseconds, rounded down.
const ROUNDED_NS: u64 = 1_000_000;

pub(super) fn check(
    history: &History,
    joined: &Joined,
    excused: impl Fn(&str, &Lease) -> bool,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (id, lease) in &joined.leases {
        violations.extend(after_its_end(history, id, lease));
        violations.extend(told_less(history, joined, id, lease));
        violations.extend(told_late(history, joined, id, lease));
    }
    if joined.claims.exclusion {
        violations.extend(after_anothers(history, joined, excused));
    }
    violations
}

/// Checks that no request after the loss or the release is confirmed.
fn after_its_end(history: &History, id: &str, lease: &Lease) -> Option<Violation> {
    let ends = [lease.lost, lease.release_confirmed];
    let over = ends.into_iter().flatten().min()?;
    let told = lease.told.iter().find(|told| told.invoked > over)?;
    let what = format!("lease {id} was confirmed after its app had been told of its end");
    let lines = [over, told.invoked, told.answered];
    Some(Violation::of(history, what, &lines))
}

/// Checks that no answer shortens the deadline, unless the clock that it is based on jumped in the
/// meantime. An answer contains the time left since the arrival of the request, and the app counts
/// from when it sent the request. The difference is at most the time until the answer.
fn told_less(history: &History, joined: &Joined, id: &str, lease: &Lease) -> Vec<Violation> {
    let at = |event: usize| history.events[event].at;
    let mut by_request = lease.told.clone();
    by_request.sort_by_key(|told| told.invoked);
    let mut answered = lease.told.iter().peekable();
    let mut latest: Option<&Told> = None;
    let mut violations = Vec::new();
    for told in &by_request {
        while let Some(before) = answered.next_if(|before| before.answered < told.invoked) {
            let is_newest = latest.is_none_or(|latest| {
                let time = at(latest.invoked)..=at(before.answered);
                before.until > latest.until || joined.clock_leapt(&lease.process, time)
            });
            if before.asks_less || is_newest {
                latest = Some(before);
            }
        }
        let Some(latest) = latest.filter(|_| !told.asks_less) else {
            continue;
        };
        let left = latest.until.saturating_sub(at(told.invoked));
        let rate = u128::from(left) * u128::from(joined.claims.clock_rate_ppm) / 1_000_000;
        let allowed = (at(told.answered) - at(told.invoked))
            .saturating_add(u64::try_from(rate).unwrap_or(u64::MAX))
            .saturating_add(joined.claims.clock_bound_ns + ROUNDED_NS);
        let time = at(latest.invoked)..=at(told.answered);
        let is_less = told.until.saturating_add(allowed) < latest.until;
        if is_less && !joined.clock_leapt(&lease.process, time) {
            let back = Duration::from_nanos(latest.until - told.until);
            let what = format!("lease {id} was told {back:?} less than before");
            let lines = [latest.answered, told.invoked, told.answered];
            violations.push(Violation::of(history, what, &lines));
        }
    }
    violations
}

/// A notification that an app beyond its deadline has to receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    /// The last answer before it.
    last: usize,
    /// Since when the app only listened, while both it and its sidecar ran.
    from: u64,
    /// The deadline of the notification.
    by: u64,
    /// The event that notified it of the loss, of an extension, or of the end of the stream.
    told: Option<usize>,
}

impl Owed {
    /// Returns how long the app waited, or `None` if it still waits.
    pub(super) fn waited(&self, history: &History) -> Option<Duration> {
        let told = history.events[self.told?].at;
        Some(Duration::from_nanos(told.saturating_sub(self.from)))
    }
}

/// Returns the notifications that were due for a lease: one for each time that its app listened
/// beyond its deadline. None is due to an app that stopped, released, or never ran for that long.
/// An app listens from when it notices that its deadline has passed. It counts from when it sent
/// its request, and its sidecar counts from the arrival. If one of them did not run in between, the
/// other's deadline is later by that time.
pub(super) fn owed(history: &History, joined: &Joined, lease: &Lease, within: u64) -> Vec<Owed> {
    let at = |event: usize| history.events[event].at;
    let end = history.events.last().map_or(0, |last| last.at);
    let let_go = lease.released.map_or(u64::MAX, at);
    let sidecar = joined.served_by.get(&lease.process);
    let who = [Some(lease.process.as_str()), sidecar.map(String::as_str)];
    let over = [lease.lost, lease.stream_end].into_iter().flatten().min();
    let mut owed = Vec::new();
    let (mut until, mut late) = (0, 0);
    for (number, last) in lease.told.iter().enumerate() {
        until = last.until.max(until);
        late = late.max(stopped_in(
            joined,
            &who,
            at(last.invoked),
            at(last.answered),
        ));
        let next = lease.told.get(number + 1).map(|told| told.answered);
        let told = next.into_iter().chain(over).min();
        let mut stopped = lease.stopped.iter();
        let seen = stopped.find(|event| **event > last.answered).copied();
        let seen = seen.filter(|seen| told.is_none_or(|told| *seen < told));
        let listens = seen.map_or(until, at);
        let from = listens
            .max(until.saturating_add(late))
            .max(at(last.answered));
        let by = ran_for(joined, &who, from, within);
        let waited = told.is_none_or(|told| at(told) >= from);
        if listens >= until && waited && by <= end && by < let_go {
            owed.push(Owed {
                last: last.answered,
                from: by.saturating_sub(within),
                by,
                told,
            });
        }
    }
    owed
}

/// Returns how long one of them did not run within an interval.
fn stopped_in(joined: &Joined, who: &[Option<&str>], from: u64, until: u64) -> u64 {
    let who = who.iter().flatten();
    let stops = who.filter_map(|who| joined.stops.get(*who)).flatten();
    let inside = stops.map(|(stopped, ran)| until.min(*ran).saturating_sub(from.max(*stopped)));
    inside.sum()
}

/// Returns the first time by which all of them ran for that long without a break. The machine, too,
/// must have run for that long in total, with or without breaks.
fn ran_for(joined: &Joined, who: &[Option<&str>], from: u64, within: u64) -> u64 {
    let who = who.iter().flatten();
    let stops = who.filter_map(|who| joined.stops.get(*who)).flatten();
    let mut stops: Vec<_> = stops.copied().collect();
    stops.sort_unstable();
    let mut from = from;
    for (stopped, ran) in stops {
        if stopped <= from.saturating_add(within) {
            from = from.max(ran);
        }
    }
    let mut by = from.saturating_add(within);
    for (stopped, ran) in joined.stops.get(EVERYONE).into_iter().flatten() {
        if *stopped < by {
            by = by.saturating_add(ran.saturating_sub(from.max(*stopped)));
        }
    }
    by
}

/// If the run claims it, checks that a loss is notified by its deadline.
fn told_late(history: &History, joined: &Joined, id: &str, lease: &Lease) -> Option<Violation> {
    let within = joined.claims.loss_told_within_ns?;
    let owed = owed(history, joined, lease, within);
    owed.into_iter().find_map(|owed| {
        let Some(told) = owed.told else {
            let what = format!("nobody told the app of lease {id} that its time was over");
            return Some(Violation::of(history, what, &[owed.last]));
        };
        let late = history.events[told].at.checked_sub(owed.by);
        let late = Duration::from_nanos(late.filter(|late| *late > 0)?);
        let what = format!("the app of lease {id} heard what became of it {late:?} too late");
        Some(Violation::of(history, what, &[owed.last, told]))
    })
}

/// Checks that no older lease is confirmed after a newer token of the resource was returned. An app
/// that did not run reads an event of a stream later than its sidecar sent it, and nothing records
/// when that was: an event counts as sent by its deadline.
fn after_anothers(
    history: &History,
    joined: &Joined,
    excused: impl Fn(&str, &Lease) -> bool,
) -> Vec<Violation> {
    let newest = newest_by_answer(joined);
    let mut violations = Vec::new();
    for (id, lease) in &joined.leases {
        let (Some(token), Some(newest)) = (lease.token, newest.get(lease.resource.as_str())) else {
            continue;
        };
        for told in lease.told.iter().skip(1) {
            let is_event = told.invoked == told.answered;
            let before = newest.partition_point(|(answered, _)| {
                *answered < told.invoked && (!is_event || history.events[*answered].at < told.until)
            });
            let Some((answered, newer)) = newest[..before].last() else {
                continue;
            };
            if *newer > token && !excused(id, lease) {
                let what = format!(
                    "lease {id} (token {token}) was confirmed after token {newer} had been given"
                );
                let lines = [*answered, told.invoked, told.answered];
                violations.push(Violation::of(history, what, &lines));
                break;
            }
        }
    }
    violations
}

/// Returns, for each resource and each answer to an acquire, the largest token returned so far.
fn newest_by_answer(joined: &Joined) -> BTreeMap<&str, Vec<(usize, u64)>> {
    let mut newest: BTreeMap<&str, Vec<(usize, u64)>> = BTreeMap::new();
    for lease in joined.leases.values() {
        if let (Some(token), Some(first)) = (lease.token, lease.told.first()) {
            let all = newest.entry(&lease.resource).or_default();
            all.push((first.answered, token));
        }
    }
    for all in newest.values_mut() {
        all.sort_unstable();
        let mut largest = 0;
        for (_, token) in all {
            largest = largest.max(*token);
            *token = largest;
        }
    }
    newest
}
