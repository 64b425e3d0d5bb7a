//! What becomes of what an earlier process left, once its session was renewed and what that holds was
//! listed. A pure decision.
//!
//! Invariant: a lease goes on only if both the journal and the store say that it is there; everything
//! else is let go, and not before the deadline that its app may have been told.

use std::collections::BTreeMap;

use super::past::{LastLease, Left};
use crate::agent::Life;
use crate::agent::core::history::End;
use crate::agent::journal::record::LeaseRecord;
use crate::protocol::ids::{GrantId, LeaseId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::store::{Page, Stored};

/// What becomes of everything.
#[derive(Debug, Default)]
pub(in crate::agent) struct Plan {
    /// These go on.
    pub(super) resumed: Vec<(LeaseRecord, Stored<Lock>)>,
    /// These do not.
    pub(super) lost: Vec<(LeaseRecord, Loss)>,
    /// What the store said of leases that were being released.
    pub(super) settled: Vec<(LeaseId, End)>,
    /// Grants whose last lease was ended by its app or the agent: they are released at once.
    pub(super) at_once: Vec<Unserved>,
    /// Grants that no lease in the journal goes on with. Nobody should know of them but those who
    /// held by a connection, whose app ended the lease since, and who were told of a lead that its app
    /// had ended; what those were told has to run out.
    /// So it has for others, because a journal that is an older copy of itself does not know what was
    /// told since.
    pub(super) in_time: Vec<Unserved>,
}

/// A grant without a lease.
#[derive(Debug)]
pub(super) struct Unserved {
    pub(super) resource: Resource,
    pub(super) grant: GrantId,
    /// None where it cannot be read.
    pub(super) stored: Option<Stored<Lock>>,
    /// The lease whose end its release completes, if there is one.
    pub(super) lease: Option<LeaseId>,
    /// Whether the process before may have sent a release.
    pub(super) may_have_landed: bool,
}

impl Unserved {
    fn listed(grant: GrantId, stored: Stored<Lock>, lease: Option<LeaseId>) -> Self {
        Self {
            resource: stored.value.resource.clone(),
            grant,
            stored: Some(stored),
            lease,
            may_have_landed: false,
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

    /// The lock of a lease, if the session holds it by that lease's grant.
    fn take(&mut self, lease: &LeaseRecord) -> Option<Stored<Lock>> {
        let stored = self.held.get(&lease.grant())?;
        let is_of_it = lease.resource().as_ref() == Some(&stored.value.resource)
            && lease.is_of(stored.value.token);
        if !is_of_it {
            return None;
        }
        self.held.remove(&lease.grant())
    }

    /// A lease's grant where it can be neither seen nor ruled out.
    fn unread(&self, lease: &LeaseRecord, ends: Option<LeaseId>) -> Option<Unserved> {
        let grant = lease.grant();
        if !self.has_gaps || self.held.contains_key(&grant) {
            return None;
        }
        Some(Unserved {
            resource: lease.resource()?,
            grant,
            stored: None,
            lease: ends,
            may_have_landed: false,
        })
    }
}

impl Left {
    /// What becomes of everything, by what the session holds.
    pub(super) fn plan(self, page: Page<Lock>) -> Plan {
        let mut plan = Plan::default();
        let mut listed = Listed::of(page);
        for lease in self.leases.into_values() {
            plan.decide(lease, &mut listed);
        }
        for lease in &self.ended_since {
            let id = lease.lease();
            if let Some(stored) = listed.take(lease) {
                let returned = Unserved::listed(lease.grant(), stored, Some(id));
                plan.in_time.push(returned);
            } else if let Some(unread) = listed.unread(lease, Some(id.clone())) {
                plan.in_time.push(unread);
            } else {
                // Its app released it while it was not known whether it goes on; it does not.
                plan.settled.push((id, End::Lost(Loss::GrantGone)));
            }
        }
        for (grant, last) in self.returning {
            plan.decide_returning(grant, last, &mut listed);
        }
        let others = listed.held.into_iter();
        let others = others.map(|(grant, stored)| Unserved::listed(grant, stored, None));
        plan.in_time.extend(others);
        plan
    }
}

impl Plan {
    /// What becomes of a lease that was not over.
    fn decide(&mut self, lease: LeaseRecord, listed: &mut Listed) {
        let is_resumable = matches!(lease.life.into(), Life::Ttl(_));
        let unread = listed.unread(&lease, None);
        let is_unread = unread.is_some();
        self.in_time.extend(unread);
        if !is_resumable || is_unread {
            // Who held it by a connection has none any more, and a campaign runs anew; nothing goes
            // on unseen.
            self.lost.push((lease, Loss::AgentRestarted));
        } else if let Some(stored) = listed.take(&lease) {
            self.resumed.push((lease, stored));
        } else {
            self.lost.push((lease, Loss::GrantGone));
        }
    }

    /// What becomes of a grant whose last lease was over.
    fn decide_returning(&mut self, grant: GrantId, last: LastLease, listed: &mut Listed) {
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
            may_have_landed: true,
        };
        if last.is_given_back {
            self.at_once.push(unserved);
        } else {
            self.in_time.push(unserved);
        }
    }
}
