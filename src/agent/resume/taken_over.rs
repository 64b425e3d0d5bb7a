//! What an earlier process left, in the state of this one: what its leases are answered while it is not
//! known whether they go on, and from then on.

use std::mem;

use super::past::Left;
use super::plan::Plan;
use crate::agent::core::begun;
use crate::agent::core::held::Held;
use crate::agent::core::history::End;
use crate::agent::core::leases::Leases;
use crate::agent::core::warm::others_wait;
use crate::agent::journal::record::{LeaseRecord, Record, RequestRecord, SessionRecord};
use crate::agent::state::State;
use crate::agent::{LeaseError, Life};
use crate::protocol::election::is_election;
use crate::protocol::fair_share::FairShare;
use crate::protocol::ids::LeaseId;
use crate::protocol::lease::{Lease, Tenure};
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::Token;
use crate::store::Stored;

impl State {
    /// Why there is nothing to say of a lease that is not served and did not end.
    pub(in crate::agent) fn unserved(&self, lease: &LeaseId) -> LeaseError {
        match &self.resuming {
            Some(left) if left.leases.contains_key(lease) => LeaseError::Resuming,
            _ => LeaseError::Unknown,
        }
    }

    /// An app ends a lease of which it is not known whether it goes on. No release is sent before that
    /// is, and what was told has run out.
    pub(super) fn end_unresumed(&mut self, lease: &LeaseId, now: Moment) -> bool {
        let left = self.resuming.as_mut();
        let Some(record) = left.and_then(|left| left.end_since(lease)) else {
            return false;
        };
        let ended = record.ended(End::Releasing, false);
        let request = ended.request.clone();
        self.write_ended(ended);
        self.remember_earlier(lease.clone(), End::Releasing, request, now);
        true
    }

    /// Knows from here on what an earlier process left: how leases ended, and, if it had a session,
    /// that it is to be found out which of the others go on.
    pub(super) fn recall(&mut self, mut left: Left, now: Moment) {
        for ended in mem::take(&mut left.ended) {
            let (lease, end) = left.end_of(&ended);
            self.remember_earlier(lease, end, ended.request, now);
        }
        if left.session.is_some() {
            self.resuming = Some(left);
            return;
        }
        // Whatever is on its way is no concern of a session to come.
        let since = left.ended_since.iter().map(LeaseRecord::lease);
        let returning = left.returning.into_values().map(|last| last.lease);
        for lease in returning.chain(since) {
            self.core.history.release_ended(&lease, End::Released);
        }
        self.begin_journal();
    }

    /// Remembers how a lease of an earlier process ended, unless this one knows better.
    fn remember_earlier(
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

    /// Makes the plan true in memory and in the journal, but for the releases.
    pub(super) fn take_over(&mut self, plan: &Plan, now: Moment) {
        for (lease, end) in &plan.settled {
            self.core.history.release_ended(lease, *end);
        }
        for (record, loss) in &plan.lost {
            let request = record.request();
            self.remember_earlier(record.lease(), End::Lost(*loss), request, now);
        }
        self.idle_since = now;
        for (record, loss) in &plan.lost {
            self.write_ended(record.ended(End::Lost(*loss), false));
        }
        // Else it would grow with each death.
        self.shorten_journal();
    }

    /// The session was renewed, and is not taken up yet.
    pub(super) fn write_renewed(&mut self, stored: &Stored<Session>, valid_until: Moment) {
        let session = SessionRecord::new(stored, valid_until);
        self.write(|_| Some(Record::Session(session)));
    }
}

/// Continues the leases that are resumed, and keeps other grants from everybody until what was promised
/// has passed.
pub(super) fn resume(leases: &mut Leases, plan: &Plan, told_until: Moment, now: Moment) {
    let resumed = plan.resumed.iter().map(|(record, _)| record.grant());
    let in_time = plan.in_time.iter().map(|unserved| unserved.grant.clone());
    leases.earlier().resume(told_until, resumed, in_time);
    for (record, stored) in &plan.resumed {
        if let Some(held) = held_again(record, stored, told_until, now) {
            begun::resume(leases, held, record.asked());
        }
    }
}

/// A lease of an earlier process, as it is served from now on. Its grant's other tokens are spent.
fn held_again(
    record: &LeaseRecord,
    stored: &Stored<Lock>,
    told_until: Moment,
    now: Moment,
) -> Option<Held> {
    let life = Life::from(record.life);
    let Life::Ttl(ttl) = life else {
        return None;
    };
    let token = Token::from_raw(record.token);
    // Whom the earlier process told of a lead is not known.
    let has_readers = is_election(&stored.value.resource);
    let readers_until = Some(told_until).filter(|_| has_readers).unwrap_or_default();
    let mut share = FairShare::default();
    let session = stored.value.grant.as_ref()?.holder.key();
    share.note_others(others_wait(&stored.value, &session), now);
    Some(Held {
        lease: Lease::resumed(record.lease(), token, told_until, now, ttl),
        tenure: Tenure::resumed(record.grant(), stored.value.token),
        session,
        owner: record.owner(),
        life,
        keep: record.keep(),
        metadata: record.metadata.clone(),
        acquired_at: WallTime(record.acquired_at_us),
        stored: stored.clone(),
        share,
        since: now,
        request: record.request().and_then(|request| request.key()),
        // Whether its answer was heard is not known.
        replayed: true,
        readers_until,
        closing: None,
        unheard_until: None,
    })
}
