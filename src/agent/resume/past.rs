//! What the records of an earlier process say: pure decisions, no I/O.
//!
//! Invariant: whatever is wrong with a journal, it is refused as a whole: nothing of it is gone on
//! with. One that is an older copy of itself is not wrong. That there were more leases since, or more
//! of them in a grant, cannot be told from it; who goes on with it (`plan`, `bound`) reckons with that.

use std::collections::BTreeMap;

use super::refusal::Refusal;
use crate::agent::Past;
use crate::agent::core::history::End;
use crate::agent::journal::record::{EndedRecord, Identity, LeaseRecord, Record, SessionRecord};
use crate::protocol::ids::{GrantId, LeaseId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::time::{Moment, SessionTtl};

/// What an earlier process left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Left {
    /// The session that it lived by.
    pub(in crate::agent) session: Option<SessionRecord>,
    /// The leases that it served.
    pub(super) leases: BTreeMap<LeaseId, LeaseRecord>,
    /// How others ended, oldest first.
    pub(super) ended: Vec<EndedRecord>,
    /// The grants that serve nobody any more, each with its last lease.
    pub(super) returning: BTreeMap<GrantId, LastLease>,
    /// Those that their apps ended since, while it was not known whether they go on.
    pub(super) ended_since: Vec<LeaseRecord>,
}

/// The last lease of a grant that serves nobody any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LastLease {
    pub(super) lease: LeaseId,
    /// What it locked; none where that is not on file any more.
    pub(super) resource: Option<Resource>,
    /// Whether its release was to be sent at once. Others were kept from everybody for a while.
    pub(super) is_given_back: bool,
}

/// A journal that is not gone on with.
#[derive(Debug)]
pub(super) struct Refused {
    /// Why.
    pub(super) why: Refusal,
    /// What it says all the same, as far as it could be read.
    pub(super) left: Box<Left>,
}

/// What an earlier process left, if this agent may go on with it.
pub(super) fn read(
    past: &Past,
    identity: &Identity,
    ttl: SessionTtl,
    now: Moment,
) -> Result<Left, Refused> {
    let mut left = Left::default();
    match left.read(past, identity, ttl, now) {
        Ok(()) => Ok(left),
        Err(why) => Err(Refused {
            why,
            left: Box::new(left),
        }),
    }
}

fn check_identity(written: Identity, own: &Identity) -> Result<(), Refusal> {
    if written.boot_id != own.boot_id {
        Err(Refusal::OtherBoot)
    } else if written.pod_uid != own.pod_uid {
        Err(Refusal::OtherPod(written.pod_uid))
    } else if written.namespace != own.namespace {
        Err(Refusal::OtherNamespace(written.namespace))
    } else if written.ttl_seconds != own.ttl_seconds {
        Err(Refusal::OtherTtl(written.ttl_seconds))
    } else {
        Ok(())
    }
}

impl Left {
    fn read(
        &mut self,
        past: &Past,
        identity: &Identity,
        ttl: SessionTtl,
        now: Moment,
    ) -> Result<(), Refusal> {
        let records = match past {
            Past::Nothing => return Ok(()),
            Past::Damaged(words) => return Err(Refusal::Damaged(words.clone())),
            Past::Records(records) => records,
        };
        let mut records = records
            .iter()
            .map(|bytes| Record::parse(bytes).map_err(Refusal::Unreadable));
        let Some(Record::Agent(written)) = records.next().transpose()? else {
            return Err(Refusal::Unreadable("it does not say whose it is".into()));
        };
        // Also where it is not gone on with, so that it is known what that is.
        let taken = records.try_for_each(|record| self.take(record?));
        check_identity(written, identity)?;
        taken?;
        match &self.session {
            Some(session) if session.valid_until().since(now) > ttl.holder_share() => {
                Err(Refusal::FromTheFuture)
            }
            Some(_) => Ok(()),
            None => {
                // It was written anew while the session was being lost.
                self.end_all(Loss::AgentRestarted);
                Ok(())
            }
        }
    }

    fn take(&mut self, record: Record) -> Result<(), Refusal> {
        match record {
            Record::Agent(_) => {
                return Err(Refusal::Unreadable("it says whose it is twice".into()));
            }
            Record::Session(session) => self.session = Some(session),
            Record::SessionOver => {
                self.session = None;
                self.end_all(Loss::AgentRestarted);
            }
            Record::Lease(lease) => {
                if lease.resource().is_none() {
                    return Err(Refusal::Unreadable("a lease without a resource".into()));
                }
                self.leases.insert(lease.lease(), *lease);
            }
            Record::Ttl(change) => {
                if let Some(lease) = self.leases.get_mut(&LeaseId::from(change.lease)) {
                    lease.change_life(change.life);
                }
            }
            Record::Ended(ended) => self.end(ended),
            Record::Unheard(request) => {
                let of_it = |lease: &&mut LeaseRecord| lease.request().as_ref() == Some(&request);
                if let Some(lease) = self.leases.values_mut().find(of_it) {
                    lease.forget_request();
                }
            }
        }
        Ok(())
    }

    /// A lease is over.
    fn end(&mut self, mut ended: EndedRecord) {
        let id = LeaseId::from(ended.lease.as_str());
        let lease = self.leases.remove(&id);
        if lease
            .as_ref()
            .is_some_and(|lease| lease.request().is_none())
        {
            // What nobody heard is no answer to a repetition.
            ended.request = None;
        }
        // The lease's record may have been dropped when the journal was written anew.
        let grant = lease.as_ref().map(LeaseRecord::grant);
        if let Some(grant) = grant.or_else(|| id.grant()) {
            self.end_in_grant(grant, id, lease.as_ref(), &ended);
        }
        self.ended.push(ended);
    }

    /// What the end of a lease says of its grant. The last word on that counts.
    fn end_in_grant(
        &mut self,
        grant: GrantId,
        id: LeaseId,
        lease: Option<&LeaseRecord>,
        ended: &EndedRecord,
    ) {
        let before = self.returning.remove(&grant);
        let before = before.filter(|before| before.lease == id);
        if before.is_some() {
            // Its app had ended it; this is how that went on.
            self.ended.retain(|before| before.lease != ended.lease);
        }
        if ended.gives_back || ended.held_back {
            let requested = || ended.request.as_ref()?.key().map(|key| key.resource);
            let resource = lease.and_then(LeaseRecord::resource);
            let resource = resource.or_else(|| before?.resource).or_else(requested);
            let last = LastLease {
                lease: id,
                resource,
                is_given_back: ended.gives_back,
            };
            self.returning.insert(grant, last);
        }
    }

    /// How a lease ended that is not served any more. One that its app ended is released when the store
    /// says so, which it may not have yet.
    pub(super) fn end_of(&self, ended: &EndedRecord) -> (LeaseId, End) {
        let lease = LeaseId::from(ended.lease.as_str());
        let last = lease.grant().and_then(|grant| self.returning.get(&grant));
        let is_on_its_way = last.is_some_and(|last| last.lease == lease);
        let end = match ended.end() {
            End::Released if is_on_its_way => End::Releasing,
            end => end,
        };
        (lease, end)
    }

    /// An app ended a lease of which it is not known whether it goes on.
    pub(super) fn end_since(&mut self, lease: &LeaseId) -> Option<LeaseRecord> {
        let record = self.leases.remove(lease)?;
        self.ended_since.push(record.clone());
        Some(record)
    }

    /// All leases are over.
    pub(super) fn end_all(&mut self, loss: Loss) {
        let ends = std::mem::take(&mut self.leases).into_values();
        let ends = ends.map(|lease| lease.ended(End::Lost(loss), false));
        self.ended.extend(ends);
    }
}

#[cfg(test)]
mod tests;
