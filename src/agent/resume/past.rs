//! What the records of an earlier process say: pure decisions, no I/O.
//!
//! Invariant: whatever is wrong with a journal, it is refused as a whole: nothing of it is gone on
//! with. One that is an older copy of itself is not wrong. That there were more leases since, or more
//! of them in a grant, cannot be told from it; who goes on with it (`plan`, `bound`) reckons with that.

use std::collections::{BTreeMap, HashMap};

use super::refusal::Refusal;
use crate::agent::Past;
use crate::agent::journal::record::{EndedRecord, Identity, LeaseRecord, Record, SessionRecord};
use crate::agent::state::End;
use crate::protocol::ids::{GrantId, LeaseId};
use crate::protocol::lease::Loss;
use crate::protocol::time::{Moment, SessionTtl};

/// What an earlier process left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Left {
    /// The session that it lived by.
    pub(super) session: Option<SessionRecord>,
    /// The leases that it served.
    pub(super) leases: BTreeMap<LeaseId, LeaseRecord>,
    /// How others ended, oldest first.
    pub(super) ended: Vec<EndedRecord>,
    /// The grants that serve nobody any more, each with its last lease: their releases may have been
    /// sent.
    pub(super) given_back: HashMap<GrantId, LeaseId>,
    /// Those that their apps ended since, while it was not known whether they go on.
    pub(super) ended_since: Vec<LeaseRecord>,
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
        if ended.gives_back {
            // The lease's record may have been dropped when the journal was written anew.
            let grant = lease.map(|lease| lease.grant()).or_else(|| id.grant());
            self.given_back.extend(grant.map(|grant| (grant, id)));
        }
        self.ended.push(ended);
    }

    /// How a lease ended that is not served any more. One whose release may be on its way has ended
    /// when the store says so.
    pub(super) fn end_of(&self, ended: &EndedRecord) -> (LeaseId, End) {
        let lease = LeaseId::from(ended.lease.as_str());
        let is_last = |grant: &GrantId| self.given_back.get(grant) == Some(&lease);
        let is_on_its_way = ended.gives_back && lease.grant().as_ref().is_some_and(is_last);
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
