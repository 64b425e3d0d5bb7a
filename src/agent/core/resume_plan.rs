//! What becomes of an earlier process' leases once its session was renewed and what it holds was
//! listed. A pure decision.
//!
//! Invariant: a lease continues only if both the state file and the store have it. Every other grant is
//! released: at once if its app has ended its last lease, otherwise not before the deadline that its app
//! may have been told.

use std::collections::BTreeMap;

use crate::agent::api::Life;
use crate::protocol::ids::{GrantId, LeaseId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::object::{Page, Stored};

use super::history::End;
use super::saved::{LastLease, SavedLease, SavedState};

/// What becomes of everything.
#[derive(Debug, Default)]
pub(in crate::agent) struct Plan {
    /// The leases that continue.
    pub(in crate::agent) resumed: Vec<(SavedLease, Stored<Lock>)>,
    /// The leases that do not.
    pub(in crate::agent) lost: Vec<(SavedLease, Loss)>,
    /// What the store said of leases that were being released.
    pub(in crate::agent) settled: Vec<(LeaseId, End)>,
    /// Grants whose last lease was ended by its app or the agent: they are released at once.
    pub(in crate::agent) at_once: Vec<Unserved>,
    /// Grants that no lease continues. They are released when the old deadline has passed: holders by
    /// connection and readers of an ended lead may rely on them until then, and for a grant that is not
    /// on file the promise is unknown.
    pub(in crate::agent) in_time: Vec<Unserved>,
}

/// A grant without a lease.
#[derive(Debug)]
pub(in crate::agent) struct Unserved {
    pub(in crate::agent) resource: Resource,
    pub(in crate::agent) grant: GrantId,
    /// The lock with it; `None` if that cannot be read.
    pub(in crate::agent) stored: Option<Stored<Lock>>,
    /// The lease whose end its release completes, if there is one.
    pub(in crate::agent) lease: Option<LeaseId>,
    /// Whether the earlier process may have sent a release.
    pub(in crate::agent) may_be_applied: bool,
}

impl Unserved {
    fn listed(grant: GrantId, stored: Stored<Lock>, lease: Option<LeaseId>) -> Self {
        Self {
            resource: stored.value.resource.clone(),
            grant,
            stored: Some(stored),
            lease,
            may_be_applied: false,
        }
    }
}

/// What the session holds, by grant.
struct Listed {
    held: BTreeMap<GrantId, Stored<Lock>>,
    /// Locks that are not in it may be those that cannot be read.
    has_gaps: bool,
}

impl Listed {
    fn of(page: Page<Lock>) -> Self {
        let grant_of = |stored: &Stored<Lock>| Some(stored.value.grant.as_ref()?.id.clone());
        let held = page.items.into_iter();
        Self {
            held: held.filter_map(|s| Some((grant_of(&s)?, s))).collect(),
            has_gaps: !page.unreadable.is_empty(),
        }
    }

    /// Takes the lock of a lease, if the session holds it by that lease's grant.
    fn take(&mut self, lease: &SavedLease) -> Option<Stored<Lock>> {
        let stored = self.held.get(&lease.grant)?;
        let is_of_it = lease.resource == stored.value.resource && lease.is_of(stored.value.token);
        if !is_of_it {
            return None;
        }
        self.held.remove(&lease.grant)
    }

    /// Returns a lease's grant if it can be neither seen nor ruled out.
    fn unread(&self, lease: &SavedLease, ends: Option<LeaseId>) -> Option<Unserved> {
        if !self.has_gaps || self.held.contains_key(&lease.grant) {
            return None;
        }
        Some(Unserved {
            resource: lease.resource.clone(),
            grant: lease.grant.clone(),
            stored: None,
            lease: ends,
            may_be_applied: false,
        })
    }
}

impl Plan {
    /// Decides what becomes of everything, by what the session holds.
    pub(in crate::agent) fn new(saved: SavedState, page: Page<Lock>) -> Self {
        let mut plan = Self::default();
        let mut listed = Listed::of(page);
        for lease in saved.leases.into_values() {
            plan.decide(lease, &mut listed);
        }
        for lease in saved.ended_since {
            plan.decide_ended_since(&lease, &mut listed);
        }
        for (grant, last) in saved.releasing {
            plan.decide_releasing(grant, last, &mut listed);
        }
        let others = listed.held.into_iter();
        let others = others.map(|(grant, stored)| Unserved::listed(grant, stored, None));
        plan.in_time.extend(others);
        plan
    }

    /// Decides what becomes of a lease that was not over.
    fn decide(&mut self, lease: SavedLease, listed: &mut Listed) {
        let is_resumable = matches!(lease.life, Life::Ttl(_));
        let unread = listed.unread(&lease, None);
        let is_unread = unread.is_some();
        self.in_time.extend(unread);
        if !is_resumable || is_unread {
            // The connection ended with the process, a campaign starts again, and no lease continues
            // while its lock cannot be read.
            self.lost.push((lease, Loss::AgentRestarted));
        } else if let Some(stored) = listed.take(&lease) {
            self.resumed.push((lease, stored));
        } else {
            self.lost.push((lease, Loss::GrantGone));
        }
    }

    /// Decides what becomes of a lease that its app ended while it was not known whether it continues.
    fn decide_ended_since(&mut self, lease: &SavedLease, listed: &mut Listed) {
        let id = lease.id.clone();
        let unserved = match listed.take(lease) {
            Some(stored) => Some(Unserved::listed(
                lease.grant.clone(),
                stored,
                Some(id.clone()),
            )),
            None => listed.unread(lease, Some(id.clone())),
        };
        match unserved {
            Some(unserved) => self.release(unserved, !lease.has_readers()),
            None => self.settled.push((id, End::Lost(Loss::GrantGone))),
        }
    }

    /// Decides what becomes of a grant whose last lease was over.
    fn decide_releasing(&mut self, grant: GrantId, last: LastLease, listed: &mut Listed) {
        let stored = listed.held.remove(&grant);
        if stored.is_none() && !listed.has_gaps {
            return self.settled.push((last.lease, End::Released));
        }
        let found = stored.as_ref().map(|stored| stored.value.resource.clone());
        let Some(resource) = found.or(last.resource) else {
            // It may be there, and nothing says where: its lease stays one that is being released.
            return;
        };
        let unserved = Unserved {
            resource,
            grant,
            stored,
            lease: Some(last.lease),
            may_be_applied: true,
        };
        self.release(unserved, last.may_release);
    }

    fn release(&mut self, unserved: Unserved, at_once: bool) {
        if at_once {
            self.at_once.push(unserved);
        } else {
            self.in_time.push(unserved);
        }
    }
}
