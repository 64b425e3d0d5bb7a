//! How leases ended and what requests were answered, for as long as that is remembered.

use crate::agent::Life;
use crate::agent::journal::record::{EndedRecord, RequestRecord};
use crate::protocol::ids::LeaseId;
use crate::protocol::time::Moment;

use super::{Answered, ENDED_MAX, ENDED_REMEMBERED, End, RequestKey, State};

impl State {
    /// Remembers how a lease ended.
    pub(in crate::agent) fn remember_end(
        &mut self,
        lease: LeaseId,
        end: End,
        request: Option<RequestKey>,
        now: Moment,
    ) {
        self.ended.insert(lease.clone(), end);
        self.ended_order.push_back((now, lease, request));
        self.forget_ends(now);
    }

    /// Remembers how a lease of an earlier process ended, unless this one knows better. A repetition
    /// of its request is told so, unless that was answered with one that is served. They come oldest
    /// first, and the last answer to a request counts.
    pub(in crate::agent) fn remember_earlier(
        &mut self,
        lease: LeaseId,
        end: End,
        request: Option<RequestRecord>,
        now: Moment,
    ) {
        if self.ended.contains_key(&lease) {
            return;
        }
        let request = request.and_then(|request| request.key());
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
        self.remember_end(lease, end, request, now);
    }

    /// The ends that are worth writing down: those whose grants may still be in the store, and so
    /// many of the last ones.
    pub(in crate::agent) fn last_ends(&self, count: usize) -> impl Iterator<Item = EndedRecord> {
        let last_from = self.ended_order.len().saturating_sub(count);
        let ends = self.ended_order.iter().enumerate();
        ends.filter_map(move |(place, (_, lease, request))| {
            let end = *self.ended.get(lease)?;
            let is_kept = end == End::Releasing || place >= last_from;
            let request = request.as_ref().map(Into::into);
            let is_held_back = |grant| self.is_held_back(&grant);
            let gives_back = end == End::Releasing && !lease.grant().is_some_and(is_held_back);
            is_kept.then(|| EndedRecord::new(lease.to_string(), end, gives_back, request))
        })
    }

    /// How a lease ended, if it is remembered.
    pub(in crate::agent) fn ended(&self, lease: &LeaseId) -> Option<End> {
        self.ended.get(lease).copied()
    }

    /// The store said what became of a lock that was being released.
    pub(in crate::agent) fn release_ended(&mut self, lease: &LeaseId, how: End) {
        if let Some(end @ End::Releasing) = self.ended.get_mut(lease) {
            *end = how;
        }
    }

    /// It is known better by now how a lease ended.
    pub(in crate::agent) fn correct_end(&mut self, lease: &LeaseId, how: End) {
        if let Some(end) = self.ended.get_mut(lease) {
            *end = how;
        }
    }

    /// What a request was answered before; nothing once that lease's end is forgotten.
    pub(in crate::agent) fn answered(
        &mut self,
        request: &RequestKey,
        now: Moment,
    ) -> Option<Answered> {
        self.forget_ends(now);
        self.answered.get(request).cloned()
    }

    /// What a request that was answered with a lease had asked for.
    pub(in crate::agent) fn asked_for(&self, request: &RequestKey) -> Option<Life> {
        let (life, ..) = self.answered.get(request)?.body.as_ref()?;
        Some(*life)
    }

    /// Forgets what a request was answered, because nobody heard it.
    pub(in crate::agent) fn forget_answer(&mut self, request: &RequestKey) {
        self.write_unheard(request);
        self.answered.remove(request);
    }

    fn forget_ends(&mut self, now: Moment) {
        while let Some((at, ..)) = self.ended_order.front() {
            if self.ended_order.len() <= ENDED_MAX && now.since(*at) < ENDED_REMEMBERED {
                break;
            }
            let Some((_, lease, request)) = self.ended_order.pop_front() else {
                break;
            };
            self.ended.remove(&lease);
            if let Some(request) = request {
                // The request may have been answered anew since.
                let of_this = |answered: &Answered| answered.lease == lease;
                if self.answered.get(&request).is_some_and(of_this) {
                    self.answered.remove(&request);
                }
            }
        }
    }
}
