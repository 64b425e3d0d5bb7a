//! Whether a history can be true: all checks, and what there was to check.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail};

use super::beliefs::{self, Overlap, grants_begun, is_overridden};
use super::event::{EVERYONE, Op};
use super::file::History;
use super::joined::{Joined, Lease};
use super::violation::Violation;
use super::{fence, log, losses, tokens};

/// How many violations a failure prints; one fault makes many.
const PRINTED: usize = 10;

/// What a history has in it: a check of nothing shows nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// All events.
    pub(crate) events: usize,
    /// Leases that were returned to an app.
    pub(crate) leases: usize,
    /// The grants that these are of.
    pub(crate) grants: usize,
    /// Those for which exclusion is not claimed.
    pub(crate) overridden: usize,
    /// Fenced writes that were accepted.
    pub(crate) accepted: usize,
    /// Fenced writes, and entries, that were refused as stale.
    pub(crate) refused: usize,
    /// Fenced writes of unknown outcome.
    pub(crate) unknown: usize,
    /// Reads of registers.
    pub(crate) reads: usize,
    /// Acknowledged entries in logs that were checked.
    pub(crate) appended: usize,
    /// Leases whose loss was notified to their apps.
    pub(crate) lost: usize,
    /// How often an app listened beyond its deadline, and had to be notified within the time that the run claims.
    pub(crate) owed: usize,
    /// For how long it waited at most.
    pub(crate) waited: Duration,
}

impl History {
    /// Everything in it that cannot be. n log n in its events; 100,000 take a second or so
    /// without optimization.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let joined = Joined::of(self);
        let overridden = overridden(self, &joined);
        let excused = |id: &str, _: &Lease| overridden.contains(id);
        let mut violations = joined.malformed.clone();
        violations.extend(tokens::check(self, &joined, excused));
        violations.extend(fence::check(self, &joined, excused));
        violations.extend(log::check(self, &joined));
        violations.extend(losses::check(self, &joined, excused));
        if joined.claims.exclusion {
            violations.extend(beliefs::check(self, &joined, excused));
        }
        violations
    }

    /// Nothing in it cannot be.
    ///
    /// # Errors
    /// The first violations in words, with their lines.
    pub(crate) fn check(&self) -> Result<Summary> {
        let violations = self.violations();
        if violations.is_empty() {
            return Ok(self.summary());
        }
        let first = violations.iter().take(PRINTED);
        let first: Vec<_> = first.map(Violation::to_string).collect();
        bail!("{} violations:\n{}", violations.len(), first.join("\n"))
    }

    /// Where two apps believed at one time, whatever the run claims: for comparison.
    pub(crate) fn overlaps(&self) -> Vec<Overlap> {
        beliefs::overlaps(self, &Joined::of(self), 0, |_, _| false)
    }

    /// What it contains.
    pub(crate) fn summary(&self) -> Summary {
        let joined = Joined::of(self);
        let told = |lease: &&Lease| !lease.told.is_empty();
        let owed = owed(self, &joined);
        let outcome = |accepted| {
            let writes = joined.writes.iter().filter(|write| !write.is_append);
            writes.filter(|write| write.accepted == accepted).count()
        };
        Summary {
            events: self.events.len(),
            leases: joined.leases.values().filter(told).count(),
            grants: grants_begun(&joined).len(),
            overridden: overridden(self, &joined).len(),
            accepted: outcome(Some(true)),
            refused: refused(&joined),
            unknown: outcome(None),
            lost: joined
                .leases
                .values()
                .filter(|it| it.lost.is_some())
                .count(),
            reads: joined.reads.len(),
            appended: log::acknowledged(&joined),
            owed: owed.len(),
            waited: owed.into_iter().max().unwrap_or_default(),
        }
    }

    /// How often its machine stalled.
    pub(crate) fn stalls(&self) -> usize {
        let stops = Joined::of(self).stops;
        stops.get(EVERYONE).map_or(0, Vec::len)
    }

    /// How often each kind of event is in it.
    pub(crate) fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for event in &self.events {
            let op = serde_json::to_value(&event.op).unwrap_or_default();
            let kind = format!("{} {:?}", op["op"].as_str().unwrap_or("?"), event.phase);
            *kinds.entry(kind.to_lowercase()).or_default() += 1;
        }
        kinds
    }

    /// The resources that its leases are of.
    pub(crate) fn resources(&self) -> BTreeSet<&str> {
        let resources = self.events.iter().filter_map(|event| match &event.op {
            Op::Acquire { resource, .. } => Some(resource.as_str()),
            _ => None,
        });
        resources.collect()
    }
}

/// The stale writes that were refused, by the answer to the app or by the register's record.
fn refused(joined: &Joined) -> usize {
    let told = joined.writes.iter();
    let told = told.filter(|write| write.accepted == Some(false));
    let told = told.map(|write| (write.register.as_str(), write.value.as_str()));
    let decided = joined.decisions.iter().flat_map(|(register, decisions)| {
        let refused = decisions.iter().filter(|decision| !decision.accepted);
        refused.map(|decision| (register.as_str(), decision.value.as_str()))
    });
    told.chain(decided).collect::<BTreeSet<_>>().len()
}

/// For how long each app listened that had to be notified after its deadline.
fn owed(history: &History, joined: &Joined) -> Vec<Duration> {
    let Some(within) = joined.claims.loss_told_within_ns else {
        return Vec::new();
    };
    let leases = joined.leases.values();
    let owed = leases.flat_map(|lease| losses::owed(history, joined, lease, within));
    owed.filter_map(|owed| owed.waited(history)).collect()
}

fn overridden<'j>(history: &History, joined: &'j Joined) -> BTreeSet<&'j str> {
    let begun = grants_begun(joined);
    let leases = joined.leases.iter();
    let overridden = leases.filter(|(id, lease)| is_overridden(history, joined, &begun, id, lease));
    overridden.map(|(id, _)| id.as_str()).collect()
}
