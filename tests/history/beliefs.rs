//! The intervals in which apps believed to hold a lock, and their overlaps.
//!
//! An app believes from when it has read an answer until the deadline in it, or until it begins to
//! release, is notified of the loss, or stops acting. The cost is that of sorting the beliefs: n
//! log n.

use std::collections::BTreeMap;

use super::file::History;
use super::joined::{Joined, Lease};
use super::violation::Violation;

/// An interval in which an app believed to have a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Belief<'j> {
    /// The lease's id.
    pub(crate) lease: &'j str,
    /// The beginning, on the history's clock.
    pub(crate) from: u64,
    /// The end, if the app acted until then.
    pub(crate) until: u64,
    /// The answer that it is based on.
    pub(super) answered: usize,
}

/// Two apps that believed in one resource at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    /// The resource.
    pub(crate) resource: String,
    /// The beginning of the overlap, on the history's clock.
    pub(crate) from: u64,
    /// Its duration, in nanoseconds.
    pub(crate) lasted_ns: u64,
    /// The answers that the two beliefs are based on.
    pub(super) answers: [usize; 2],
}

/// Returns the beliefs of one lease. A belief that an answer extended counts as one.
pub(super) fn beliefs<'j>(history: &History, id: &'j str, lease: &Lease) -> Vec<Belief<'j>> {
    let at = |event: usize| history.events[event].at;
    let over = [lease.released, lease.lost].into_iter().flatten().min();
    let mut beliefs: Vec<Belief<'j>> = Vec::new();
    for told in &lease.told {
        if over.is_some_and(|over| over < told.answered) {
            continue;
        }
        let from = at(told.answered);
        let stopped = lease.stopped.iter().copied();
        let stopped = stopped.filter(|event| *event > told.answered).min();
        let cut = over.into_iter().chain(stopped).map(at).min();
        let until = told.until.min(cut.unwrap_or(u64::MAX));
        if until <= from {
            continue;
        }
        match beliefs.last_mut() {
            Some(last) if last.until >= from => last.until = last.until.max(until),
            _ => beliefs.push(Belief {
                lease: id,
                from,
                until,
                answered: told.answered,
            }),
        }
    }
    beliefs
}

/// Returns where two apps believed at the same time, for longer than `bound`. Leases for which
/// `excused` returns `true` are left out.
pub(super) fn overlaps(
    history: &History,
    joined: &Joined,
    bound: u64,
    excused: impl Fn(&str, &Lease) -> bool,
) -> Vec<Overlap> {
    let mut by_resource: BTreeMap<&str, Vec<Belief<'_>>> = BTreeMap::new();
    for (id, lease) in &joined.leases {
        if !excused(id, lease) {
            let all = by_resource.entry(&lease.resource).or_default();
            all.extend(beliefs(history, id, lease));
        }
    }
    let mut overlaps = Vec::new();
    for (resource, mut beliefs) in by_resource {
        beliefs.sort_by_key(|belief| (belief.from, belief.answered));
        overlaps.extend(overlaps_of(resource, &beliefs, bound));
    }
    overlaps.sort_by_key(|overlap| overlap.from);
    overlaps
}

/// Compares the sorted beliefs of one resource: each with the longest earlier one of another lease.
fn overlaps_of(resource: &str, beliefs: &[Belief<'_>], bound: u64) -> Vec<Overlap> {
    let mut overlaps = Vec::new();
    // The longest belief so far, and the longest one of any other lease.
    let mut longest: Option<Belief<'_>> = None;
    let mut other: Option<Belief<'_>> = None;
    for belief in beliefs {
        let is_own = longest.is_some_and(|longest| longest.lease == belief.lease);
        let before = if is_own { other } else { longest };
        if let Some(before) = before.filter(|before| before.until > belief.from + bound) {
            overlaps.push(Overlap {
                resource: resource.to_owned(),
                from: belief.from,
                lasted_ns: before.until.min(belief.until) - belief.from,
                answers: [before.answered, belief.answered],
            });
        }
        let is_longer = longest.is_none_or(|longest| belief.until > longest.until);
        if is_longer {
            if !is_own {
                other = longest;
            }
            longest = Some(*belief);
        } else if !is_own && other.is_none_or(|other| belief.until > other.until) {
            other = Some(*belief);
        }
    }
    overlaps
}

/// Returns the grant of a lease: `<grantId>.<n>` is the n-th lease of a grant.
pub(super) fn grant_of(lease: &str) -> &str {
    lease.rsplit_once('.').map_or(lease, |(grant, _)| grant)
}

/// Returns the first request of each grant: the first one of its leases.
pub(super) fn grants_begun(joined: &Joined) -> BTreeMap<&str, usize> {
    let mut begun = BTreeMap::new();
    for (id, lease) in &joined.leases {
        for told in &lease.told {
            let first = begun.entry(grant_of(id)).or_insert(told.invoked);
            *first = told.invoked.min(*first);
        }
    }
    begun
}

/// Returns whether a lease is overridden: its grant was ended, as far as that is known, or may have
/// existed at the time of an override. A grant may be kept without a lease, and serve another lease
/// before its agent notices the override.
pub(super) fn is_overridden(
    history: &History,
    joined: &Joined,
    grants_begun: &BTreeMap<&str, usize>,
    id: &str,
    lease: &Lease,
) -> bool {
    let Some(&first) = grants_begun.get(grant_of(id)) else {
        return false;
    };
    let begun = history.events[first].at;
    let believed = beliefs(history, id, lease);
    let asked = lease
        .told
        .iter()
        .map(|told| history.events[told.invoked].at);
    let over = believed.iter().map(|belief| belief.until).chain(asked);
    let over = over.max().unwrap_or(begun);
    joined.overridden.iter().any(|overridden| {
        let is_of_it = match &overridden.grants {
            Some(grants) => grants.iter().any(|grant| grant == grant_of(id)),
            None => begun <= overridden.until,
        };
        let sidecar = joined.served_by.get(&lease.process);
        let is_any = |named: &Option<String>, own| named.is_none() || named.as_ref() == own;
        is_of_it
            && !overridden.is_void
            && is_any(&overridden.resource, Some(&lease.resource))
            && is_any(&overridden.sidecar, sidecar)
            && overridden.from <= over
    })
}

/// Returns the overlaps as violations.
pub(super) fn check(
    history: &History,
    joined: &Joined,
    excused: impl Fn(&str, &Lease) -> bool,
) -> Vec<Violation> {
    let bound = joined.claims.clock_bound_ns;
    let overlaps = overlaps(history, joined, bound, excused);
    let in_words = overlaps.into_iter().map(|overlap| {
        let lasted = std::time::Duration::from_nanos(overlap.lasted_ns);
        let what = format!(
            "two apps believed to have {} at one time, for {lasted:?} from {} on",
            overlap.resource, overlap.from
        );
        Violation::of(history, what, &overlap.answers)
    });
    in_words.collect()
}
