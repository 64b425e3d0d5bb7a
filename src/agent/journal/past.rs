//! What the records of an earlier process say: pure decisions, no I/O.
//!
//! Invariant: whatever is wrong with a journal, it is discarded as a whole, and nothing of it continues.
//! That it was replaced by an older copy cannot be detected (docs/guarantees.md).

use super::record::{Identity, Record};
use crate::agent::core::discard::DiscardReason;
use crate::agent::core::saved::SavedState;
use crate::protocol::ids::LeaseId;
use crate::protocol::lease::Loss;
use crate::protocol::time::{Moment, SessionTtl};

/// What an earlier process left in a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Past {
    /// There is none.
    Nothing,
    /// All of its records, oldest first.
    Records(Vec<Vec<u8>>),
    /// It is not as it was written. In words.
    Damaged(String),
}

/// A journal that is discarded.
#[derive(Debug)]
pub(in crate::agent) struct Discarded {
    /// Why.
    pub(in crate::agent) reason: DiscardReason,
    /// What it says all the same, as far as it can be read.
    pub(in crate::agent) saved: Box<SavedState>,
}

/// Returns what an earlier process left, if this agent may continue it.
pub(in crate::agent) fn read(
    past: &Past,
    identity: &Identity,
    ttl: SessionTtl,
    now: Moment,
) -> Result<SavedState, Discarded> {
    let mut saved = SavedState::default();
    match read_into(&mut saved, past, identity, ttl, now) {
        Ok(()) => Ok(saved),
        Err(reason) => Err(Discarded {
            reason,
            saved: Box::new(saved),
        }),
    }
}

fn check_identity(written: Identity, own: &Identity) -> Result<(), DiscardReason> {
    if written.boot_id != own.boot_id {
        Err(DiscardReason::OtherBoot)
    } else if written.pod_uid != own.pod_uid {
        Err(DiscardReason::OtherPod(written.pod_uid))
    } else if written.namespace != own.namespace {
        Err(DiscardReason::OtherNamespace(written.namespace))
    } else if written.ttl_seconds != own.ttl_seconds {
        Err(DiscardReason::OtherTtl(written.ttl_seconds))
    } else {
        Ok(())
    }
}

fn read_into(
    saved: &mut SavedState,
    past: &Past,
    identity: &Identity,
    ttl: SessionTtl,
    now: Moment,
) -> Result<(), DiscardReason> {
    let records = match past {
        Past::Nothing => return Ok(()),
        Past::Damaged(words) => return Err(DiscardReason::Damaged(words.clone())),
        Past::Records(records) => records,
    };
    let mut records = records.iter().map(|bytes| Record::parse(bytes));
    let first = records.next().transpose();
    let Some(Record::Agent(written)) = first.map_err(DiscardReason::Unreadable)? else {
        let words = "it does not say whose it is";
        return Err(DiscardReason::Unreadable(words.into()));
    };
    // Also if it is discarded, so that it is known what that is.
    let taken = records.try_for_each(|record| take(saved, record?));
    check_identity(written, identity)?;
    taken.map_err(DiscardReason::Unreadable)?;
    finish(saved, ttl, now)
}

/// Checks what the records say together.
pub(in crate::agent) fn finish(
    saved: &mut SavedState,
    ttl: SessionTtl,
    now: Moment,
) -> Result<(), DiscardReason> {
    match &saved.session {
        Some(session) if session.valid_until.since(now) > ttl.holder_share() => {
            Err(DiscardReason::FromTheFuture)
        }
        Some(_) => Ok(()),
        None => {
            // It was rewritten while the session was being lost.
            saved.end_all(Loss::AgentRestarted);
            Ok(())
        }
    }
}

/// Adds what a record says.
pub(in crate::agent) fn take(saved: &mut SavedState, record: Record) -> Result<(), String> {
    match record {
        Record::Agent(_) => return Err("it says whose it is twice".into()),
        Record::Session(session) => saved.add_session(session.read()),
        Record::SessionOver => saved.end_session(),
        Record::Lease(lease) => saved.add_lease(lease.read()?),
        Record::Ttl(change) => {
            saved.change_life(&LeaseId::from(change.lease), change.life.read());
        }
        Record::Ended(ended) => saved.end(ended.read()),
        Record::Unheard(request) => {
            if let Some(request) = request.key() {
                saved.forget_request(&request);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
