//! All checks of whether a history can be true, and the statistics of what they covered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail};

use super::beliefs::{self, Overlap, grants_begun, is_overridden};
use super::event::{EVERYONE, Op};
use super::file::History;
use super::joined::{Joined, Lease, Write};
use super::violation::Violation;
use super::{fence, log, losses, tokens};

/// How many violations a failure prints; one bug causes many.
const PRINTED: usize = 10;

/// The content of a history: a check of an empty one shows nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    /// All events.
    pub(crate) events: usize,
    /// Leases that an app received.
    pub(crate) leases: usize,
    /// The grants of these leases.
    pub(crate) grants: usize,
    /// Leases for which exclusion is not claimed.
    pub(crate) overridden: usize,
    /// Fenced writes that were accepted.
    pub(crate) accepted: usize,
    /// Fenced writes, and entries, that were refused as stale.
    pub(crate) refused: usize,
    /// Fenced writes, and entries, of unknown outcome.
    pub(crate) unknown: usize,
    /// Reads of registers.
    pub(crate) reads: usize,
    /// Acknowledged entries in checked logs.
    pub(crate) appended: usize,
    /// Leases whose loss was notified to their apps.
    pub(crate) lost: usize,
    /// How often an app listened beyond its deadline, and had to be notified within the time that
    /// the run claims.
    pub(crate) owed: usize,
    /// The longest time until such a notification.
    pub(crate) waited: Duration,
}

impl History {
    /// Returns everything in it that is impossible. It takes n log n in the number of events: about
    /// a second for 100,000 without optimization.
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

    /// Checks that nothing in it is impossible.
    ///
    /// # Errors
    /// Returns the first violations, each with its lines.
    pub(crate) fn check(&self) -> Result<Summary> {
        let violations = self.violations();
        if violations.is_empty() {
            return Ok(self.summary());
        }
        let first = violations.iter().take(PRINTED);
        let first: Vec<_> = first.map(Violation::to_string).collect();
        bail!("{} violations:\n{}", violations.len(), first.join("\n"))
    }

    /// Returns where two apps believed at the same time, whatever the run claims: for the
    /// comparison.
    pub(crate) fn overlaps(&self) -> Vec<Overlap> {
        beliefs::overlaps(self, &Joined::of(self), 0, |_, _| false)
    }

    /// Returns its summary.
    pub(crate) fn summary(&self) -> Summary {
        let joined = Joined::of(self);
        let told = |lease: &&Lease| !lease.told.is_empty();
        let owed = owed(self, &joined);
        let accepted = |write: &&Write| write.accepted == Some(true) && !write.is_append;
        let unknown = |write: &&Write| write.accepted.is_none();
        Summary {
            events: self.events.len(),
            leases: joined.leases.values().filter(told).count(),
            grants: grants_begun(&joined).len(),
            overridden: overridden(self, &joined).len(),
            accepted: joined.writes.iter().filter(accepted).count(),
            refused: refused(&joined),
            unknown: joined.writes.iter().filter(unknown).count(),
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

    /// Returns how often its machine stalled.
    pub(crate) fn stalls(&self) -> usize {
        let stops = Joined::of(self).stops;
        stops.get(EVERYONE).map_or(0, Vec::len)
    }

    /// Returns the number of events of each kind.
    pub(crate) fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for event in &self.events {
            let op = serde_json::to_value(&event.op).unwrap_or_default();
            let kind = format!("{} {:?}", op["op"].as_str().unwrap_or("?"), event.phase);
            *kinds.entry(kind.to_lowercase()).or_default() += 1;
        }
        kinds
    }

    /// Returns the resources of its leases.
    pub(crate) fn resources(&self) -> BTreeSet<&str> {
        let resources = self.events.iter().filter_map(|event| match &event.op {
            Op::Acquire { resource, .. } => Some(resource.as_str()),
            _ => None,
        });
        resources.collect()
    }
}

/// Counts the stale writes that were refused, by the answer to the app or by the register's record.
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

/// Returns how long each app listened that had to be notified after its deadline.
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
