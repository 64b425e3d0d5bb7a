//! What apps and readers of elections are told of a lease.
//!
//! Each answer binds the agent: it is recorded in the lease before it is given.

use std::time::Duration;

use crate::agent::api::{LeaseError, LeaseView, Life};
use crate::protocol::ids::{LeaseId, OwnerId, Resource};
use crate::protocol::key::GrantKey;
use crate::protocol::lease::{Loss, Told};
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;

use super::effect::{Effect, Record};
use super::held::Held;
use super::history::End;
use super::leases::Leases;

/// What readers of an election are told of its lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct ReadersAnswer {
    pub(in crate::agent) lease: LeaseId,
    pub(in crate::agent) valid_for: Duration,
}

/// A held lease, its grant, and its lock as last seen.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Guarding {
    pub(in crate::agent) grant: GrantKey,
    pub(in crate::agent) lock: Stored<Lock>,
    pub(in crate::agent) token: Token,
    pub(in crate::agent) owner: OwnerId,
}

/// Renews a lease: its app lives. With `ttl` the app's own TTL changes. A lease that a connection
/// holds has none, and is only told what it has.
pub(in crate::agent) fn renew(
    leases: &mut Leases,
    lease: &LeaseId,
    ttl: Option<Duration>,
    arrived: Moment,
) -> Result<LeaseView, LeaseError> {
    let mut is_changed = false;
    let view = tell(leases, lease, arrived, |held, now, deadline| {
        let ttl = match held.life {
            Life::Ttl(before) => {
                is_changed = ttl.is_some_and(|ttl| ttl != before);
                ttl.unwrap_or(before)
            }
            Life::Connection { .. } | Life::Campaign => {
                return held.lease.tell_again(arrived, now, deadline);
            }
        };
        held.life = Life::Ttl(ttl);
        held.lease.tell(arrived, now, ttl, deadline)
    })?;
    if is_changed {
        let record = Record::Life(lease.clone());
        leases.env.out.push(Effect::Persist(record));
    }
    Ok(view)
}

/// Answers a repeated request with the same lease. From here on an app believes in it.
pub(in crate::agent) fn replay(
    leases: &mut Leases,
    lease: &LeaseId,
    arrived: Moment,
) -> Result<LeaseView, LeaseError> {
    let view = tell(leases, lease, arrived, |held, now, deadline| {
        match held.life {
            Life::Ttl(ttl) => held.lease.tell(arrived, now, ttl, deadline),
            Life::Connection { .. } | Life::Campaign => {
                held.lease.tell_again(arrived, now, deadline)
            }
        }
    })?;
    if let Some(held) = leases.own.lease_mut(lease) {
        held.replayed = true;
        held.unheard_until = None;
    }
    Ok(view)
}

/// Returns what a lease has left. The question is no sign that its app lives.
pub(in crate::agent) fn read(
    leases: &mut Leases,
    lease: &LeaseId,
    arrived: Moment,
) -> Result<LeaseView, LeaseError> {
    tell(leases, lease, arrived, |held, now, deadline| {
        held.lease.tell_again(arrived, now, deadline)
    })
}

/// Returns the grant of a lease, and the lock as last seen with it.
pub(in crate::agent) fn guarding(
    leases: &mut Leases,
    lease: &LeaseId,
) -> Result<Guarding, LeaseError> {
    let now = leases.env.now;
    read(leases, lease, now)?;
    let held = leases.own.lease(lease).ok_or(LeaseError::Unknown)?;
    Ok(Guarding {
        grant: held.key(),
        lock: held.stored.clone(),
        token: held.lease.token,
        owner: held.owner.clone(),
    })
}

/// Tells readers of an election how long its lease may be believed. Readers of an app's lease are
/// told of a `short` time: it is as long as they keep the next leader waiting when the app ends it.
pub(in crate::agent) fn tell_readers(
    leases: &mut Leases,
    resource: &Resource,
    arrived: Moment,
    short: Duration,
) -> Option<ReadersAnswer> {
    let lease = leases.own.held(resource)?.lease.id.clone();
    leases.end_by_clock(&lease);
    let now = leases.env.now;
    let deadline = leases.deadline_of(&leases.own.held(resource)?.session.id)?;
    let (is_draining, period) = (leases.session.is_draining(), leases.session.period());
    let held = leases.own.held_mut(resource)?;
    if held.closing.is_some() {
        return None;
    }
    let bound = match held.life {
        Life::Connection { .. } | Life::Ttl(_) => now.after(short),
        Life::Campaign => held.promised_at_most(now, deadline, period),
    };
    let told = if is_draining {
        held.lease.last_told(arrived, now)
    } else {
        held.lease.tell_again(arrived, now, deadline.min(bound))
    };
    let until = told.ok()?.until.min(bound);
    held.readers_until = held.readers_until.max(until);
    let ends_at = held.ends_at();
    leases.own.expect_end(ends_at);
    let valid_for = until.since(arrived);
    Some(ReadersAnswer { lease, valid_for })
}

fn tell(
    leases: &mut Leases,
    lease: &LeaseId,
    arrived: Moment,
    ask: impl FnOnce(&mut Held, Moment, Moment) -> Result<Told, Loss>,
) -> Result<LeaseView, LeaseError> {
    leases.end_by_clock(lease);
    match leases.history.end(lease) {
        Some(End::Released | End::Releasing) => return Err(LeaseError::Released),
        Some(End::Lost(loss)) => return Err(LeaseError::Lost(loss)),
        None => {}
    }
    let now = leases.env.now;
    let (is_draining, period) = (leases.session.is_draining(), leases.session.period());
    let Some(held) = leases.own.lease(lease) else {
        return Err(leases.session.unserved(lease));
    };
    let session = &held.session;
    let deadline = leases.deadline_of(&session.id);
    let deadline = deadline.ok_or(LeaseError::Lost(Loss::SessionExpired))?;
    let held = leases.own.lease_mut(lease).ok_or(LeaseError::Unknown)?;
    if held.closing.is_some() {
        return Err(LeaseError::Released);
    }
    // While the agent is stopping, no deadline moves any more.
    let until = held.promised_at_most(now, deadline, period);
    let told = if is_draining {
        held.lease.last_told(arrived, now)
    } else {
        ask(held, now, until)
    };
    let told = told.map_err(LeaseError::Lost)?;
    if held.life == Life::Campaign {
        // Whichever call an app learns of the lead by, it acts on that.
        held.readers_until = held.readers_until.max(told.until);
    }
    let view = held.view(told, arrived, &leases.env);
    let ends_at = held.ends_at();
    leases.own.expect_end(ends_at);
    Ok(view)
}
