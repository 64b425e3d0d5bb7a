//! What the records of an earlier process say, and what a restarted agent does with that: pure
//! decisions, no I/O.
//!
//! Invariant: whatever is wrong with a journal, it is refused as a whole. A lease is taken up only
//! if both the journal and the store say that it is there; everything else is let go, and not before
//! the deadline that its app may have been told.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use crate::agent::journal::record::{EndedRecord, Identity, LeaseRecord, Record, SessionRecord};
use crate::agent::state::End;
use crate::agent::{Life, Past};
use crate::protocol::ids::{GrantId, LeaseId};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::time::{Moment, SessionTtl};
use crate::store::{Page, Stored};

/// Why nothing is taken up again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Refusal {
    /// The file is not as it was written.
    Damaged(String),
    /// A record makes no sense.
    Unreadable(String),
    /// The machine was started again since; its clock counts from there.
    OtherBoot,
    /// Another pod's.
    OtherPod(String),
    /// Of locks in another namespace.
    OtherNamespace(String),
    /// Sessions have another TTL now.
    OtherTtl(u64),
    /// Its deadline lies further ahead than any session lives.
    FromTheFuture,
    /// What the apps were told has run out.
    DeadlinePassed,
    /// The session was revoked, or is gone.
    Revoked,
    /// The session was written since the journal was.
    Moved,
    /// The store came out of a backup.
    StoreRestored,
    /// The store gave no answer that helps until the deadline. The last one, in words.
    NoAnswer(String),
}

impl Refusal {
    /// The reason that apps are given for their leases.
    pub(in crate::agent) const fn loss(&self) -> Loss {
        match self {
            Self::DeadlinePassed | Self::NoAnswer(_) => Loss::SessionExpired,
            Self::Revoked => Loss::SessionRevoked,
            Self::StoreRestored => Loss::StoreRestored,
            _ => Loss::AgentRestarted,
        }
    }

    /// Whether there is something wrong with the file, so that people may want to look at it.
    pub(in crate::agent) const fn is_of_the_file(&self) -> bool {
        matches!(
            self,
            Self::Damaged(_)
                | Self::Unreadable(_)
                | Self::OtherBoot
                | Self::OtherPod(_)
                | Self::OtherNamespace(_)
                | Self::FromTheFuture
        )
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(words) => f.write_str(words),
            Self::Unreadable(words) => write!(f, "a record makes no sense: {words}"),
            Self::OtherBoot => f.write_str("the machine was started again since it was written"),
            Self::OtherPod(uid) => write!(f, "it is the pod's with uid {uid:?}"),
            Self::OtherNamespace(name) => write!(f, "it is of locks in the namespace {name:?}"),
            Self::OtherTtl(seconds) => {
                write!(f, "the session TTL was {seconds} s when it was written")
            }
            Self::FromTheFuture => {
                f.write_str("its deadline lies further ahead than a session can live")
            }
            Self::DeadlinePassed => f.write_str("what the apps were told had run out by then"),
            Self::Revoked => f.write_str("the session was revoked meanwhile"),
            Self::Moved => f.write_str("the session was written since the file was"),
            Self::StoreRestored => f.write_str("the store was restored from a backup"),
            Self::NoAnswer(last) => write!(
                f,
                "the store gave no answer before what the apps were told ran out ({last})"
            ),
        }
    }
}

/// What an earlier process left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::agent) struct Left {
    /// The session that it lived by.
    pub(in crate::agent) session: Option<SessionRecord>,
    /// The leases that it served.
    pub(in crate::agent) leases: BTreeMap<LeaseId, LeaseRecord>,
    /// How others ended, oldest first.
    pub(in crate::agent) ended: Vec<EndedRecord>,
    /// The grants that serve nobody any more: their releases may have been sent.
    pub(in crate::agent) given_back: HashSet<GrantId>,
}

/// What an earlier process left, if this agent may go on with it; none when there is nothing.
pub(in crate::agent) fn read(
    past: &Past,
    identity: &Identity,
    ttl: SessionTtl,
    now: Moment,
) -> Result<Option<Left>, Refusal> {
    let records = match past {
        Past::Nothing => return Ok(None),
        Past::Damaged(words) => return Err(Refusal::Damaged(words.clone())),
        Past::Records(records) => records,
    };
    let mut records = records
        .iter()
        .map(|bytes| Record::parse(bytes).map_err(Refusal::Unreadable));
    match records.next().transpose()? {
        Some(Record::Agent(written)) => check_identity(written, identity)?,
        _ => return Err(Refusal::Unreadable("it does not say whose it is".into())),
    }
    let mut left = Left::default();
    for record in records {
        left.take(record?)?;
    }
    if let Some(session) = &left.session
        && session.valid_until().since(now) > ttl.holder_share()
    {
        return Err(Refusal::FromTheFuture);
    }
    Ok(Some(left))
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
    pub(in crate::agent) fn end(&mut self, mut ended: EndedRecord) {
        let lease = self.leases.remove(&LeaseId::from(ended.lease.as_str()));
        if lease
            .as_ref()
            .is_some_and(|lease| lease.request().is_none())
        {
            // What nobody heard is no answer to a repetition.
            ended.request = None;
        }
        if let Some(lease) = lease.filter(|_| ended.gives_back) {
            self.given_back.insert(lease.grant());
        } else if let Some((grant, _)) = ended.lease.rsplit_once('.')
            && ended.gives_back
        {
            // Its record was dropped when the journal was written anew.
            self.given_back.insert(GrantId::from(grant));
        }
        self.ended.push(ended);
    }

    /// All leases are over.
    pub(in crate::agent) fn end_all(&mut self, loss: Loss) {
        let ends = std::mem::take(&mut self.leases).into_values();
        let ends = ends.map(|lease| lease.ended(End::Lost(loss), false));
        self.ended.extend(ends);
    }

    /// Whether an earlier process answered with this lease, and it was not over.
    pub(in crate::agent) fn serves(&self, lease: &LeaseId) -> bool {
        self.leases.contains_key(lease)
    }

    /// What becomes of everything, by what the session holds.
    pub(in crate::agent) fn plan(self, page: Page<Lock>) -> Plan {
        let mut plan = Plan {
            ended: self.ended,
            ..Plan::default()
        };
        let mut held: HashMap<GrantId, Stored<Lock>> = HashMap::new();
        for stored in page.items {
            if let Some(grant) = &stored.value.grant {
                held.insert(grant.id.clone(), stored);
            }
        }
        for lease in self.leases.into_values() {
            let is_resumable = matches!(lease.life.into(), Life::Ttl(_));
            let resource = lease.resource();
            let is_of = |stored: &Stored<Lock>| Some(&stored.value.resource) == resource.as_ref();
            match held.get(&lease.grant()) {
                // Who held it by a connection has none any more, and a campaign runs anew.
                _ if !is_resumable => plan.lost.push((lease, Loss::AgentRestarted)),
                Some(stored) if is_of(stored) => {
                    let stored = stored.clone();
                    held.remove(&lease.grant());
                    plan.resumed.push((lease, stored));
                }
                _ => plan.lost.push((lease, Loss::GrantGone)),
            }
        }
        for (grant, stored) in held {
            let returned = if self.given_back.contains(&grant) {
                &mut plan.at_once
            } else {
                &mut plan.in_time
            };
            returned.push((grant, stored));
        }
        plan
    }
}

/// What becomes of what an earlier process left, once its session was renewed.
#[derive(Debug, Default)]
pub(in crate::agent) struct Plan {
    /// These go on.
    pub(in crate::agent) resumed: Vec<(LeaseRecord, Stored<Lock>)>,
    /// These do not.
    pub(in crate::agent) lost: Vec<(LeaseRecord, Loss)>,
    /// These were over before.
    pub(in crate::agent) ended: Vec<EndedRecord>,
    /// Grants whose last lease was ended by its app or the agent: they are released at once.
    pub(in crate::agent) at_once: Vec<(GrantId, Stored<Lock>)>,
    /// Grants that no lease in the journal goes on with. Nobody should know of them but those who
    /// held by a connection; what those were told has to run out. So it has for others, because a
    /// journal that is an older copy of itself does not know what was told since.
    pub(in crate::agent) in_time: Vec<(GrantId, Stored<Lock>)>,
}

#[cfg(test)]
mod tests;
