//! How leases ended and what requests were answered, for as long as that is remembered: ten
//! minutes, and 20,000 ends at most.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::agent::api::{AcquireRequest, Life};
use crate::protocol::ids::{LeaseId, OwnerId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::time::Moment;

/// How long the end of a lease is remembered.
const REMEMBERED: Duration = Duration::from_secs(600);
/// How many ended leases are remembered at most.
const ENDS_MAX: usize = 20_000;

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) enum End {
    /// Its app released it, and the store has confirmed that.
    Released,
    /// Its app released it; the store has not confirmed that yet.
    Releasing,
    /// It was lost.
    Lost(Loss),
}

/// What makes two requests the same one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::agent) struct RequestKey {
    pub(in crate::agent) owner: OwnerId,
    pub(in crate::agent) resource: Resource,
    pub(in crate::agent) request_id: String,
}

impl RequestKey {
    /// Returns the name of a request, if it has a `requestId`.
    pub(in crate::agent) fn of(request: &AcquireRequest) -> Option<Self> {
        let request_id = request.request_id.clone()?;
        Some(Self {
            owner: request.owner.clone(),
            resource: request.resource.clone(),
            request_id,
        })
    }
}

/// The end of a lease, as it is on file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct EndedLease {
    pub(in crate::agent) lease: LeaseId,
    pub(in crate::agent) end: End,
    /// Whether a release of its grant may be sent from here on.
    pub(in crate::agent) may_release: bool,
    /// The request that it answered.
    pub(in crate::agent) request: Option<RequestKey>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) struct Answered {
    /// The lease that was granted.
    pub(in crate::agent) lease: LeaseId,
    /// The rest of the request's body; `None` once the lease has ended, when a repetition with any
    /// body is answered with that.
    pub(in crate::agent) body: Option<(Life, Duration, BTreeMap<String, String>)>,
}

/// The ends of leases and the answers to requests with an id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::agent) struct History {
    ends: BTreeMap<LeaseId, End>,
    order: VecDeque<(Moment, LeaseId, Option<RequestKey>)>,
    answered: BTreeMap<RequestKey, Answered>,
}

impl History {
    /// Records how a lease ended.
    pub(in crate::agent) fn record_end(
        &mut self,
        lease: LeaseId,
        end: End,
        request: Option<RequestKey>,
        now: Moment,
    ) {
        self.ends.insert(lease.clone(), end);
        self.order.push_back((now, lease, request));
        self.forget_old(now);
    }

    /// Records how a lease of an earlier process ended, unless this process knows better. A
    /// repetition of its request is answered with that end, unless the request was answered with a
    /// lease that is served. They come oldest first, and the last answer to a request counts.
    pub(in crate::agent) fn record_earlier_end(
        &mut self,
        lease: LeaseId,
        end: End,
        request: Option<RequestKey>,
        now: Moment,
    ) {
        if self.ends.contains_key(&lease) {
            return;
        }
        if let Some(key) = &request {
            let is_served = |answered: &Answered| answered.body.is_some();
            if !self.answered.get(key).is_some_and(is_served) {
                let answered = Answered {
                    lease: lease.clone(),
                    body: None,
                };
                self.answered.insert(key.clone(), answered);
            }
        }
        self.record_end(lease, end, request, now);
    }

    /// Returns the ends that are worth persisting, oldest first: those whose grants the store may
    /// still have, and the last `count`.
    pub(in crate::agent) fn last_ends(
        &self,
        count: usize,
    ) -> impl Iterator<Item = (&LeaseId, End, Option<&RequestKey>)> {
        let last_from = self.order.len().saturating_sub(count);
        let ends = self.order.iter().enumerate();
        ends.filter_map(move |(position, (_, lease, request))| {
            let end = *self.ends.get(lease)?;
            let is_kept = end == End::Releasing || position >= last_from;
            is_kept.then_some((lease, end, request.as_ref()))
        })
    }

    /// Returns how a lease ended, if that is remembered.
    pub(in crate::agent) fn end(&self, lease: &LeaseId) -> Option<End> {
        self.ends.get(lease).copied()
    }

    /// Records what became of a lock that was being released.
    pub(in crate::agent) fn release_ended(&mut self, lease: &LeaseId, end: End) {
        if let Some(known @ End::Releasing) = self.ends.get_mut(lease) {
            *known = end;
        }
    }

    /// Corrects how a lease ended, where more is known now.
    pub(in crate::agent) fn correct_end(&mut self, lease: &LeaseId, end: End) {
        if let Some(known) = self.ends.get_mut(lease) {
            *known = end;
        }
    }

    /// Records the answer to a request.
    pub(in crate::agent) fn record_answer(&mut self, request: RequestKey, answered: Answered) {
        self.answered.insert(request, answered);
    }

    /// Records that the lease of an answered request has ended.
    pub(in crate::agent) fn answer_ended(&mut self, request: &RequestKey) {
        if let Some(answered) = self.answered.get_mut(request) {
            answered.body = None;
        }
    }

    /// Returns the answer to a request; `None` once the end of its lease is forgotten.
    pub(in crate::agent) fn answer(
        &mut self,
        request: &RequestKey,
        now: Moment,
    ) -> Option<Answered> {
        self.forget_old(now);
        self.answered.get(request).cloned()
    }

    /// Returns what a request that was answered with a lease had asked for.
    pub(in crate::agent) fn requested_life(&self, request: &RequestKey) -> Option<Life> {
        let (life, ..) = self.answered.get(request)?.body.as_ref()?;
        Some(*life)
    }

    /// Forgets the answer to a request, because no caller received it.
    pub(in crate::agent) fn forget_answer(&mut self, request: &RequestKey) {
        self.answered.remove(request);
    }

    fn forget_old(&mut self, now: Moment) {
        while let Some((at, ..)) = self.order.front() {
            if self.order.len() <= ENDS_MAX && now.since(*at) < REMEMBERED {
                break;
            }
            let Some((_, lease, request)) = self.order.pop_front() else {
                break;
            };
            self.ends.remove(&lease);
            if let Some(request) = request {
                // The request may have been answered again since.
                let is_of_lease = |answered: &Answered| answered.lease == lease;
                if self.answered.get(&request).is_some_and(is_of_lease) {
                    self.answered.remove(&request);
                }
            }
        }
    }
}
