//! Fencing tokens: each belongs to one lease, and a request after another lease was granted gets a
//! larger one. This holds for all grants, including overridden ones. Exception: a later lease of an
//! overridden grant has that grant's token until its agent notices. n log n.

use std::collections::BTreeMap;

use super::beliefs::{grant_of, grants_begun};
use super::file::History;
use super::joined::{Joined, Lease};
use super::violation::Violation;

/// A lease's token, from its request to the first answer with it.
#[derive(Clone, Copy)]
struct Grant<'j> {
    lease: &'j str,
    token: u64,
    invoked: usize,
    answered: usize,
    /// A later lease of an overridden grant.
    may_be_late: bool,
}

pub(super) fn check(
    history: &History,
    joined: &Joined,
    overridden: impl Fn(&str, &Lease) -> bool,
) -> Vec<Violation> {
    let begun = grants_begun(joined);
    let mut by_resource: BTreeMap<&str, Vec<Grant<'_>>> = BTreeMap::new();
    for (id, lease) in &joined.leases {
        if let (Some(token), Some(first)) = (lease.token, lease.told.first()) {
            by_resource.entry(&lease.resource).or_default().push(Grant {
                lease: id,
                token,
                invoked: first.invoked,
                answered: first.answered,
                may_be_late: overridden(id, lease) && begun[grant_of(id)] < first.invoked,
            });
        }
    }
    let mut violations = Vec::new();
    for (resource, grants) in &by_resource {
        violations.extend(given_twice(history, resource, grants));
        violations.extend(not_rising(history, resource, grants));
    }
    violations
}

fn given_twice(history: &History, resource: &str, grants: &[Grant<'_>]) -> Vec<Violation> {
    let mut first: BTreeMap<u64, Grant<'_>> = BTreeMap::new();
    let mut violations = Vec::new();
    for grant in grants {
        if let Some(first) = first.insert(grant.token, *grant) {
            let what = format!(
                "token {} of {resource} was given twice: to lease {} and to lease {}",
                grant.token, first.lease, grant.lease
            );
            let lines = [first.answered, grant.answered];
            violations.push(Violation::of(history, what, &lines));
        }
    }
    violations
}

fn not_rising(history: &History, resource: &str, grants: &[Grant<'_>]) -> Vec<Violation> {
    let mut by_answer = grants.to_vec();
    by_answer.sort_by_key(|grant| grant.answered);
    let mut by_request = grants.to_vec();
    by_request.sort_by_key(|grant| grant.invoked);
    let mut answered = by_answer.into_iter().peekable();
    let mut largest: Option<Grant<'_>> = None;
    let mut violations = Vec::new();
    for grant in by_request {
        while let Some(before) = answered.next_if(|before| before.answered < grant.invoked) {
            if largest.is_none_or(|largest| before.token > largest.token) {
                largest = Some(before);
            }
        }
        if let Some(largest) = largest.filter(|it| it.token > grant.token && !grant.may_be_late) {
            let what = format!(
                "token {} of {resource} was asked for after token {} had been given",
                grant.token, largest.token
            );
            let lines = [largest.answered, grant.invoked, grant.answered];
            violations.push(Violation::of(history, what, &lines));
        }
    }
    violations
}
