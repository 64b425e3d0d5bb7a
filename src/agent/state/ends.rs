//! The ends of leases as the state file has them.

use crate::agent::journal::record::{EndedRecord, RequestRecord};
use crate::protocol::ids::LeaseId;
use crate::protocol::time::Moment;

use super::{End, RequestKey, State};

impl State {
    /// Remembers how a lease of an earlier process ended, unless this one knows better.
    pub(in crate::agent) fn remember_earlier(
        &mut self,
        lease: LeaseId,
        end: End,
        request: Option<RequestRecord>,
        now: Moment,
    ) {
        let request = request.and_then(|request| request.key());
        self.core
            .history
            .record_earlier_end(lease, end, request, now);
    }

    /// The ends that are worth writing down.
    pub(in crate::agent) fn last_ends(&self, count: usize) -> impl Iterator<Item = EndedRecord> {
        let ends = self.core.history.last_ends(count);
        ends.map(|(lease, end, request)| {
            let is_held_back = |grant| self.is_held_back(&grant);
            let gives_back = end == End::Releasing && !lease.grant().is_some_and(is_held_back);
            EndedRecord::new(lease.to_string(), end, gives_back, request.map(Into::into))
        })
    }

    /// Forgets what a request was answered, because nobody heard it.
    pub(in crate::agent) fn forget_answer(&mut self, request: &RequestKey) {
        self.write_unheard(request);
        self.core.history.forget_answer(request);
    }
}
