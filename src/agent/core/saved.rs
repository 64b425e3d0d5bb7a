//! What the state file says of an earlier process: its session, the leases that it served, and how
//! others ended.
//!
//! Invariant: a lease that is not known to have ended is in it, and so is each grant whose release may be
//! on its way.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::agent::api::Life;
use crate::protocol::election::is_election;
use crate::protocol::ids::{GrantId, LeaseId, OwnerId, Resource, SessionId};
use crate::protocol::lease::Loss;
use crate::protocol::object::Stored;
use crate::protocol::session::Session;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{Revision, Token};

use super::history::{End, EndedLease, RequestKey};

/// A session as it was last written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) struct SavedSession {
    pub(in crate::agent) id: SessionId,
    /// The resourceVersion that the next renewal compares.
    pub(in crate::agent) version: Revision,
    /// The local deadline. No app was promised more.
    pub(in crate::agent) valid_until: Moment,
}

impl SavedSession {
    pub(super) fn of(stored: &Stored<Session>, valid_until: Moment) -> Self {
        Self {
            id: stored.value.id.clone(),
            version: stored.version,
            valid_until,
        }
    }
}

/// A lease as its app knew it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) struct SavedLease {
    pub(in crate::agent) id: LeaseId,
    pub(in crate::agent) grant: GrantId,
    pub(in crate::agent) token: Token,
    pub(in crate::agent) resource: Resource,
    pub(in crate::agent) owner: OwnerId,
    pub(in crate::agent) life: Life,
    /// What its request asked for, if its app has changed that.
    pub(in crate::agent) requested: Option<Life>,
    /// For how long its grant was to be kept after it.
    pub(in crate::agent) keep: Duration,
    pub(in crate::agent) metadata: BTreeMap<String, String>,
    pub(in crate::agent) acquired_at: WallTime,
    /// The `requestId` of its request; `None` also if no client received the answer.
    pub(in crate::agent) request_id: Option<String>,
}

impl SavedLease {
    /// Returns what a repetition of its request has to ask for.
    pub(super) fn requested(&self) -> Life {
        self.requested.unwrap_or(self.life)
    }

    pub(super) fn request(&self) -> Option<RequestKey> {
        Some(RequestKey {
            owner: self.owner.clone(),
            resource: self.resource.clone(),
            request_id: self.request_id.clone()?,
        })
    }

    /// Returns whether its id and its token are those of one lease of its grant with this base.
    pub(super) fn is_of(&self, base: Token) -> bool {
        let n = self.token.get().checked_sub(base.get());
        let n = n.and_then(|n| u16::try_from(n).ok());
        n.is_some_and(|n| base.nth(n).is_some() && self.id == LeaseId::of(&self.grant, n))
    }

    /// Returns whether others may believe in it, because it is a lead.
    pub(super) fn has_readers(&self) -> bool {
        is_election(&self.resource)
    }

    /// Returns its end.
    pub(super) fn ended(&self, end: End, may_release: bool) -> EndedLease {
        EndedLease {
            lease: self.id.clone(),
            end,
            may_release,
            request: self.request(),
        }
    }
}

/// What an earlier process left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct SavedState {
    /// The session that it had.
    pub(in crate::agent) session: Option<SavedSession>,
    /// The leases that it served.
    pub(in crate::agent) leases: BTreeMap<LeaseId, SavedLease>,
    /// How others ended, oldest first.
    pub(super) ended: Vec<EndedLease>,
    /// The grants that serve no lease any more, each with its last one.
    pub(super) releasing: BTreeMap<GrantId, LastLease>,
    /// The leases that their apps have ended since, while it was not known whether they continue.
    pub(super) ended_since: Vec<SavedLease>,
}

/// The last lease of a grant that serves no lease any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LastLease {
    pub(super) lease: LeaseId,
    /// The lock; `None` if that is not on file any more.
    pub(super) resource: Option<Resource>,
    /// Whether its release was to be sent at once. Others had to wait for a promise.
    pub(super) may_release: bool,
}

impl SavedState {
    /// Records a session that began or was renewed.
    pub(in crate::agent) fn add_session(&mut self, session: SavedSession) {
        self.session = Some(session);
    }

    /// Ends the session, and its leases with it.
    pub(in crate::agent) fn end_session(&mut self) {
        self.session = None;
        self.end_all(Loss::AgentRestarted);
    }

    /// Adds a lease.
    pub(in crate::agent) fn add_lease(&mut self, lease: SavedLease) {
        self.leases.insert(lease.id.clone(), lease);
    }

    /// Records that an app has changed what keeps its lease alive.
    pub(in crate::agent) fn change_life(&mut self, lease: &LeaseId, life: Life) {
        if let Some(lease) = self.leases.get_mut(lease) {
            let before = std::mem::replace(&mut lease.life, life);
            lease.requested.get_or_insert(before);
        }
    }

    /// Records that no client received the answer to a request.
    pub(in crate::agent) fn forget_request(&mut self, request: &RequestKey) {
        let of_it = |lease: &&mut SavedLease| lease.request().as_ref() == Some(request);
        if let Some(lease) = self.leases.values_mut().find(of_it) {
            lease.request_id = None;
        }
    }

    /// Ends a lease.
    pub(in crate::agent) fn end(&mut self, mut ended: EndedLease) {
        let lease = self.leases.remove(&ended.lease);
        if lease
            .as_ref()
            .is_some_and(|lease| lease.request_id.is_none())
        {
            // What nobody received is no answer to a repetition.
            ended.request = None;
        }
        // The lease's beginning may have been dropped when the file was rewritten.
        let grant = lease.as_ref().map(|lease| lease.grant.clone());
        if let Some(grant) = grant.or_else(|| ended.lease.grant()) {
            let resource = lease.map(|lease| lease.resource);
            self.end_in_grant(grant, resource, &ended);
        }
        self.ended.push(ended);
    }

    /// Records what the end of a lease says of its grant. The last word on that counts.
    fn end_in_grant(&mut self, grant: GrantId, resource: Option<Resource>, ended: &EndedLease) {
        let before = self.releasing.remove(&grant);
        let before = before.filter(|before| before.lease == ended.lease);
        if before.is_some() {
            // Its app had ended it; this is how that continued.
            self.ended.retain(|before| before.lease != ended.lease);
        }
        if ended.may_release || ended.end == End::Releasing {
            let requested = || Some(ended.request.as_ref()?.resource.clone());
            let resource = resource.or_else(|| before?.resource).or_else(requested);
            let last = LastLease {
                lease: ended.lease.clone(),
                resource,
                may_release: ended.may_release,
            };
            self.releasing.insert(grant, last);
        }
    }

    /// Ends all leases.
    pub(in crate::agent) fn end_all(&mut self, loss: Loss) {
        let leases = std::mem::take(&mut self.leases).into_values();
        let ends = leases.map(|lease| lease.ended(End::Lost(loss), false));
        self.ended.extend(ends);
    }

    /// Ends a lease for its app, although it is not known whether it continues. A lead is released when
    /// its readers' time is over, others as soon as that is known.
    pub(in crate::agent) fn end_by_app(&mut self, lease: &LeaseId) -> Option<EndedLease> {
        let lease = self.leases.remove(lease)?;
        let ended = lease.ended(End::Releasing, !lease.has_readers());
        self.ended_since.push(lease);
        Some(ended)
    }

    /// Takes how leases ended, oldest first. One that its app ended is released once the store says so,
    /// which it may not have yet.
    pub(in crate::agent) fn take_ends(&mut self) -> Vec<EndedLease> {
        let mut ends = std::mem::take(&mut self.ended);
        for ended in &mut ends {
            let last = ended.lease.grant();
            let last = last.and_then(|grant| self.releasing.get(&grant));
            let is_under_way = last.is_some_and(|last| last.lease == ended.lease);
            if ended.end == End::Releasing && !is_under_way {
                ended.end = End::Released;
            }
        }
        ends
    }

    /// Returns the leases whose releases may be under way.
    pub(super) fn released(&self) -> impl Iterator<Item = &LeaseId> {
        let since = self.ended_since.iter().map(|lease| &lease.id);
        let releasing = self.releasing.values().map(|last| &last.lease);
        releasing.chain(since)
    }
}
