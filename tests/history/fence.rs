//! Fenced writes: no register accepts an older token after a newer one, and no holder is refused
//! while it believes. n log n.
//!
//! Apps know when their writes began and were answered, which leaves the order of overlapping
//! writes open. The record of a register's decisions closes that gap.

use std::collections::{BTreeMap, BTreeSet};

use super::beliefs::beliefs;
use super::file::History;
use super::joined::{Decision, Joined, Lease, Write};
use super::violation::Violation;

/// Evidence that a register had a token: a write that it accepted, or a read.
#[derive(Clone, Copy)]
struct Seen {
    token: u64,
    invoked: usize,
    answered: usize,
}

pub(super) fn check(
    history: &History,
    joined: &Joined,
    excused: impl Fn(&str, &Lease) -> bool,
) -> Vec<Violation> {
    let mut violations = as_apps_saw_it(history, joined);
    for (register, decisions) in &joined.decisions {
        violations.extend(in_its_order(history, register, decisions));
    }
    violations.extend(as_both_say(history, joined));
    if joined.claims.exclusion {
        violations.extend(refused_while_it_believed(history, joined, excused));
    }
    violations
}

fn as_apps_saw_it(history: &History, joined: &Joined) -> Vec<Violation> {
    let mut by_register: BTreeMap<&str, Vec<Seen>> = BTreeMap::new();
    for write in &joined.writes {
        if let (Some(true), Some(answered)) = (write.accepted, write.answered) {
            by_register.entry(&write.register).or_default().push(Seen {
                token: write.token,
                invoked: write.invoked,
                answered,
            });
        }
    }
    for read in &joined.reads {
        by_register.entry(&read.register).or_default().push(Seen {
            token: read.token.unwrap_or(0),
            invoked: read.invoked,
            answered: read.answered,
        });
    }
    let of_each = by_register.into_iter();
    let went_back = of_each.flat_map(|(register, seen)| went_back(history, register, seen));
    went_back.collect()
}

fn went_back(history: &History, register: &str, mut seen: Vec<Seen>) -> Vec<Violation> {
    let mut by_answer = seen.clone();
    by_answer.sort_by_key(|seen| seen.answered);
    seen.sort_by_key(|seen| seen.invoked);
    let mut answered = by_answer.into_iter().peekable();
    let mut newest: Option<Seen> = None;
    let mut violations = Vec::new();
    for later in seen {
        while let Some(before) = answered.next_if(|before| before.answered < later.invoked) {
            if newest.is_none_or(|newest| before.token > newest.token) {
                newest = Some(before);
            }
        }
        if let Some(newest) = newest.filter(|newest| newest.token > later.token) {
            let what = format!(
                "{register} went from token {} back to token {}",
                newest.token, later.token
            );
            let lines = [newest.answered, later.invoked, later.answered];
            violations.push(Violation::of(history, what, &lines));
        }
    }
    violations
}

fn in_its_order(history: &History, register: &str, decisions: &[Decision]) -> Vec<Violation> {
    let mut newest: Option<&Decision> = None;
    let mut violations = Vec::new();
    for decision in decisions {
        let is_older = newest.is_some_and(|newest| decision.token < newest.token);
        if decision.accepted == is_older {
            let done = if is_older { "accepted" } else { "refused" };
            let before = newest.map_or("none".to_owned(), |it| it.token.to_string());
            let token = decision.token;
            let what = format!("{register} {done} token {token}; the newest was {before}");
            let lines = newest.map(|newest| newest.at);
            let lines: Vec<_> = lines.into_iter().chain([decision.at]).collect();
            violations.push(Violation::of(history, what, &lines));
        }
        if decision.accepted && !is_older {
            newest = Some(decision);
        }
    }
    violations
}

/// Checks that the register gave each answer that an app received, between the request and the
/// answer.
fn as_both_say(history: &History, joined: &Joined) -> Vec<Violation> {
    type Key<'j> = (&'j str, u64, &'j str, bool);
    let mut decided: BTreeMap<Key<'_>, BTreeSet<usize>> = BTreeMap::new();
    for (register, decisions) in &joined.decisions {
        for it in decisions {
            let key = (register.as_str(), it.token, it.value.as_str(), it.accepted);
            decided.entry(key).or_default().insert(it.at);
        }
    }
    let is_recorded = |write: &&Write| joined.decisions.contains_key(&write.register);
    let mut violations = Vec::new();
    for write in joined.writes.iter().filter(is_recorded) {
        let (Some(accepted), Some(answered)) = (write.accepted, write.answered) else {
            continue;
        };
        let key = (
            write.register.as_str(),
            write.token,
            write.value.as_str(),
            accepted,
        );
        let between = write.invoked..=answered;
        let is_there = |at: &BTreeSet<usize>| at.range(between).next().is_some();
        if !decided.get(&key).is_some_and(is_there) {
            let what = format!(
                "{} never gave the answer that this write had",
                write.register
            );
            let lines = [write.invoked, answered];
            violations.push(Violation::of(history, what, &lines));
        }
    }
    violations
}

fn refused_while_it_believed(
    history: &History,
    joined: &Joined,
    excused: impl Fn(&str, &Lease) -> bool,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for write in &joined.writes {
        let (Some(false), Some(answered)) = (write.accepted, write.answered) else {
            continue;
        };
        let Some(lease) = joined.leases.get(&write.lease) else {
            continue;
        };
        if excused(&write.lease, lease) {
            continue;
        }
        let (from, until) = (
            history.events[write.invoked].at,
            history.events[answered].at,
        );
        let mut believed = beliefs(history, &write.lease, lease).into_iter();
        if let Some(belief) = believed.find(|it| it.from <= from && until < it.until) {
            let what = format!(
                "{} refused token {} while its app had every right to believe",
                write.register, write.token
            );
            let lines = [belief.answered, write.invoked, answered];
            violations.push(Violation::of(history, what, &lines));
        }
    }
    violations
}
