//! What an app is told of its lease: no yes after its end, no less than was told before, and a
//! loss in time. n log n.

use std::collections::BTreeMap;
use std::time::Duration;

use super::file::History;
use super::joined::{Joined, Lease, Told};
use super::violation::Violation;

/// Validity is told in whole milliseconds, rounded down.
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

/// Nobody who asks after the app was told of the loss, or of the release, hears yes.
fn after_its_end(history: &History, id: &str, lease: &Lease) -> Option<Violation> {
    let ends = [lease.lost, lease.release_confirmed];
    let over = ends.into_iter().flatten().min()?;
    let told = lease.told.iter().find(|told| told.invoked > over)?;
    let what = format!("lease {id} was confirmed after its app had been told of its end");
    let lines = [over, told.invoked, told.answered];
    Some(Violation::of(history, what, &lines))
}

/// An answer moves no deadline back. Told is what is left from the arrival of the request, and the
/// app counts from when it sent it: what lies between is at most the time until the answer.
fn told_less(history: &History, joined: &Joined, id: &str, lease: &Lease) -> Vec<Violation> {
    let at = |event: usize| history.events[event].at;
    let mut by_request = lease.told.clone();
    by_request.sort_by_key(|told| told.invoked);
    let mut answered = lease.told.iter().peekable();
    let mut latest: Option<&Told> = None;
    let mut violations = Vec::new();
    for told in &by_request {
        while let Some(before) = answered.next_if(|before| before.answered < told.invoked) {
            if before.asks_less || latest.is_none_or(|latest| before.until > latest.until) {
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
        if told.until.saturating_add(allowed) < latest.until {
            let back = Duration::from_nanos(latest.until - told.until);
            let what = format!("lease {id} was told {back:?} less than before");
            let lines = [latest.answered, told.invoked, told.answered];
            violations.push(Violation::of(history, what, &lines));
        }
    }
    violations
}

/// Where the run claims it: a loss is told by the deadline that it is about.
fn told_late(history: &History, joined: &Joined, id: &str, lease: &Lease) -> Option<Violation> {
    let (within, lost) = (joined.claims.loss_told_within_ns?, lease.lost?);
    if lease.released.is_some_and(|released| released < lost) {
        return None;
    }
    let told = lease.told.iter().filter(|told| told.answered < lost);
    let longest = told.max_by_key(|told| told.until)?;
    let limit = longest.until.saturating_add(within);
    let at = history.events[lost].at;
    let late = Duration::from_nanos(at.checked_sub(limit).filter(|late| *late > 0)?);
    let what = format!("lease {id} was called lost {late:?} too late");
    Some(Violation::of(history, what, &[longest.answered, lost]))
}

/// Once somebody was told of a newer token of the resource, no older lease is confirmed.
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
            let before = newest.partition_point(|(answered, _)| *answered < told.invoked);
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

/// Of each resource, the largest token that had been told by each answer of an acquire.
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
