//! The final contents of logs: tokens never decrease along a log, each acknowledged entry is there
//! once, and a refused one is absent.

use std::collections::BTreeMap;

use super::event::Entry;
use super::file::History;
use super::joined::{Joined, Write};
use super::violation::Violation;

pub(super) fn check(history: &History, joined: &Joined) -> Vec<Violation> {
    let logs = joined.logs.iter();
    let violations = logs.flat_map(|(log, entries, told)| {
        let mut violations = went_back(history, log, entries, *told);
        violations.extend(against_appends(history, joined, log, entries, *told));
        violations
    });
    violations.collect()
}

/// Counts the entries that are known to be in a log.
pub(super) fn acknowledged(joined: &Joined) -> usize {
    let appends = joined.writes.iter().filter(|write| write.is_append);
    let is_told = |write: &&Write| {
        let mut logs = joined.logs.iter();
        let answered = write.answered.filter(|_| write.accepted == Some(true));
        logs.any(|(log, _, told)| *log == write.register && answered.is_some_and(|at| at < *told))
    };
    appends.filter(is_told).count()
}

fn went_back(history: &History, log: &str, entries: &[Entry], told: usize) -> Vec<Violation> {
    let pairs = entries.iter().zip(entries.iter().skip(1));
    let backwards = pairs.filter(|(before, after)| before.token > after.token);
    let in_words = backwards.map(|(before, after)| {
        let (before, after) = (before.token, after.token);
        let what = format!("{log} goes from token {before} back to token {after}");
        Violation::told(history, what, told)
    });
    in_words.collect()
}

fn against_appends(
    history: &History,
    joined: &Joined,
    log: &str,
    entries: &[Entry],
    told: usize,
) -> Vec<Violation> {
    let mut there: BTreeMap<(u64, &str), usize> = BTreeMap::new();
    for entry in entries {
        *there.entry((entry.token, &entry.value)).or_default() += 1;
    }
    let mut violations = Vec::new();
    let appends = joined.writes.iter().filter(|write| write.is_append);
    for write in appends.filter(|write| write.register == log && write.invoked < told) {
        let times = there.remove(&(write.token, write.value.as_str()));
        let times = times.unwrap_or(0);
        let answered = write.answered.filter(|answered| *answered < told);
        let expected = match answered.and(write.accepted) {
            Some(true) => 1..=1,
            Some(false) => 0..=0,
            None => 0..=1,
        };
        if !expected.contains(&times) {
            let what = format!("{log} has an entry {times} times: {}", write.value);
            let lines: Vec<_> = [write.invoked].into_iter().chain(answered).collect();
            violations.push(Violation::of(history, what, &lines));
        }
    }
    violations.extend(there.into_keys().map(|(_, value)| {
        let what = format!("{log} has an entry that nobody appended: {value}");
        Violation::told(history, what, told)
    }));
    violations
}
