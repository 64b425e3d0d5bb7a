//! What this agent has of the locks: the leases that it serves, its warm grants, and leases that are
//! over while it is found out why.
//!
//! No decisions. Invariant: a resource has a lease or a warm grant and never both, because a lock is
//! not reentrant.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::ids::{GrantId, LeaseId, Resource, SessionId};
use crate::protocol::key::GrantKey;
use crate::protocol::lease::Loss;
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::held::Held;
use super::history::{End, EndedLease};
use super::warm::Warm;

/// How many foreign grants are reported; one pod can make any number.
const REPORTED_MAX: usize = 1_000;

/// The leases and warm grants of this agent.
#[derive(Clone, Debug, Default)]
pub(in crate::agent) struct Own {
    /// The leases that are served, by resource. Each in a box, because a map is up to half empty.
    held: BTreeMap<Resource, Box<Held>>,
    /// The resource of each lease.
    resource_of: BTreeMap<LeaseId, Resource>,
    warm: BTreeMap<Resource, Warm>,
    /// Leases that are over while it is found out why. Their ends are not reported before.
    unexplained: BTreeMap<LeaseId, Held>,
    /// Leases that the agent itself ended, because it stops.
    stopped: BTreeSet<LeaseId>,
    /// Foreign grants that were reported.
    reported: BTreeSet<GrantId>,
    /// Whether a grant gave another lease since the store was last asked who waits.
    pub(super) was_reused: bool,
    /// No lease or warm grant ends by the clock before this.
    next_end: Option<Moment>,
}

/// What the agent had of a lock when a read of it was sent.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Before {
    /// The lease, its grant, and the version at which the lock was last seen with it.
    pub(super) lease: Option<(LeaseId, GrantKey, Revision)>,
    /// The warm grant.
    pub(super) warm: Option<GrantKey>,
}

impl Own {
    /// Returns the lease of a resource. Its app may have ended it: then it is `closing`, and only readers of
    /// an election still believe in it.
    pub(in crate::agent) fn held(&self, resource: &Resource) -> Option<&Held> {
        self.held.get(resource).map(Box::as_ref)
    }

    /// Returns a lease.
    pub(in crate::agent) fn lease(&self, lease: &LeaseId) -> Option<&Held> {
        self.held(self.resource_of.get(lease)?)
    }

    /// Returns the leases that are served, and those that only their readers still believe in.
    pub(in crate::agent) fn leases(&self) -> impl Iterator<Item = &Held> {
        self.held.values().map(Box::as_ref)
    }

    /// Returns how many leases there are.
    pub(in crate::agent) fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns the warm grant of a resource.
    pub(in crate::agent) fn warm(&self, resource: &Resource) -> Option<&Warm> {
        self.warm.get(resource)
    }

    /// Returns the warm grants.
    pub(in crate::agent) fn warm_grants(&self) -> impl Iterator<Item = (&Resource, &Warm)> {
        self.warm.iter()
    }

    /// Returns how many warm grants there are.
    pub(in crate::agent) fn warm_len(&self) -> usize {
        self.warm.len()
    }

    /// Returns whether the agent has this grant, with a lease or warm.
    pub(in crate::agent) fn has(&self, resource: &Resource, grant: &GrantId) -> bool {
        let held = self.held.get(resource).map(|held| held.tenure.grant());
        let warm = self.warm.get(resource).map(|warm| warm.tenure.grant());
        held == Some(grant) || warm == Some(grant)
    }

    /// Returns what there is of a lock before a read of it is sent, to be compared with that.
    pub(in crate::agent) fn before_read(&self, resource: &Resource) -> Before {
        let lease = self.held(resource);
        let lease = lease.map(|held| (held.lease.id.clone(), held.key(), held.stored.version));
        let warm = self.warm(resource).map(Warm::key);
        Before { lease, warm }
    }

    /// Returns whether it is not known yet why a lease is lost.
    pub(in crate::agent) fn is_unexplained(&self, lease: &LeaseId) -> bool {
        self.unexplained.contains_key(lease)
    }

    /// Returns whether the agent ended a lease because it stops.
    pub(in crate::agent) fn was_stopped(&self, lease: &LeaseId) -> bool {
        self.stopped.contains(lease)
    }

    /// Returns the end of a lease as it is to be persisted: how it ended, and whether its release may
    /// be on its way then.
    pub(in crate::agent) fn end_record(held: &Held, end: End) -> EndedLease {
        EndedLease {
            lease: held.lease.id.clone(),
            end,
            may_release: held.tenure.is_release_sent() && !is_of_session(end),
            request: held.request.clone(),
        }
    }

    pub(super) fn held_mut(&mut self, resource: &Resource) -> Option<&mut Held> {
        self.held.get_mut(resource).map(Box::as_mut)
    }

    pub(super) fn lease_mut(&mut self, lease: &LeaseId) -> Option<&mut Held> {
        let resource = self.resource_of.get(lease)?;
        self.held.get_mut(resource).map(Box::as_mut)
    }

    pub(super) fn warm_mut(&mut self, resource: &Resource) -> Option<&mut Warm> {
        self.warm.get_mut(resource)
    }

    /// Adds a lease.
    pub(super) fn add(&mut self, held: Held) {
        let resource = held.stored.value.resource.clone();
        self.resource_of
            .insert(held.lease.id.clone(), resource.clone());
        self.expect_end(held.ends_at());
        self.held.insert(resource, Box::new(held));
    }

    /// Removes a lease that is over.
    pub(super) fn remove(&mut self, lease: &LeaseId) -> Option<Held> {
        let resource = self.resource_of.remove(lease)?;
        self.held.remove(&resource).map(|held| *held)
    }

    /// Keeps the grant of a lease that is over.
    pub(super) fn keep(&mut self, resource: Resource, warm: Warm) {
        self.expect_end(warm.ends_at());
        self.warm.insert(resource, warm);
    }

    /// Removes a warm grant.
    pub(super) fn take_warm(&mut self, resource: &Resource) -> Option<Warm> {
        self.warm.remove(resource)
    }

    /// Removes the warm grants of a session that is lost.
    pub(super) fn take_warm_of(&mut self, session: &SessionId) -> Vec<(Resource, Warm)> {
        let of_it = |_: &Resource, warm: &mut Warm| warm.session.id == *session;
        self.warm.extract_if(.., of_it).collect()
    }

    pub(super) fn explain_later(&mut self, held: Held) {
        self.unexplained.insert(held.lease.id.clone(), held);
    }

    pub(super) fn take_unexplained(&mut self, lease: &LeaseId) -> Option<Held> {
        self.unexplained.remove(lease)
    }

    pub(super) fn record_stopped(&mut self, lease: LeaseId) {
        self.stopped.insert(lease);
    }

    /// Returns whether a foreign grant is to be reported: once.
    pub(super) fn is_to_be_reported(&mut self, grant: &GrantId) -> bool {
        self.reported.len() < REPORTED_MAX && self.reported.insert(grant.clone())
    }

    /// Records that something ends by the clock at a moment.
    pub(super) fn expect_end(&mut self, moment: Moment) {
        self.next_end = Some(self.next_end.map_or(moment, |next| next.min(moment)));
    }

    /// Returns when something may end by the clock.
    pub(super) const fn next_end(&self) -> Option<Moment> {
        self.next_end
    }

    /// Returns what has ended by the clock. What ends next is known afterwards.
    pub(super) fn over_by(&mut self, now: Moment) -> (Vec<LeaseId>, Vec<Resource>) {
        if self.next_end.is_none_or(|next| now < next) {
            return (Vec::new(), Vec::new());
        }
        let leases = self.held.values();
        let leases = leases.map(|held| (held.ends_at(), &held.lease.id));
        let warm = self.warm.iter();
        let warm = warm.map(|(resource, warm)| (warm.ends_at(), resource));
        let ends = leases.clone().map(|(end, _)| end);
        let ends = ends.chain(warm.clone().map(|(end, _)| end));
        self.next_end = ends.filter(|end| now < *end).min();
        let leases = leases.filter(|(end, _)| now >= *end);
        let warm = warm.filter(|(end, _)| now >= *end);
        (
            leases.map(|(_, lease)| lease.clone()).collect(),
            warm.map(|(_, resource)| resource.clone()).collect(),
        )
    }
}

/// Returns whether a lease ended because its session did: what was promised of it passes before its
/// grant is released.
const fn is_of_session(end: End) -> bool {
    matches!(
        end,
        End::Lost(Loss::SessionExpired | Loss::SessionRevoked | Loss::StoreRestored)
    )
}
