//! What callers are answered.
//!
//! Who is in the way decides what a caller gets that cannot have the lock:
//!
//! | the grant | a try | a caller whose wait is over |
//! | --- | --- | --- |
//! | another session's | [`held_as_read`]; if it is marked as kept, after 250 ms in the queue | the same |
//! | this pod's, with a lease, also one that only readers believe in | [`held_here`] | the same |
//! | this pod's, warm, and an earlier caller gets it | [`held_here`] | the same |
//! | this pod's, and being released | a lease or 503 within five seconds (`failure`) | [`held_as_read`] |
//!
//! A free lock has no queue: a release hands the lock to the first waiter in the same write.

use crate::agent::api::{AcquireError, Acquired, HeldView, HolderView, LeaseView, WaiterView};
use crate::protocol::ids::Resource;
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::object::Stored;
use crate::protocol::queue::Waiter;
use crate::protocol::time::Moment;

use super::answers;
use super::callers::{Caller, CallerId, Callers};
use super::claim::Claim;
use super::effect::{CallId, Effect, Reply};
use super::held::Held;
use super::leases::Leases;
use super::session::Live;
use super::warm::Warm;

/// How many queue entries before a caller's are named.
const AHEAD_MAX: usize = 5;
/// What to say of a lock that serves a lease of this pod.
const HELD_HERE: &str = "this pod holds the lock itself; locks are not reentrant";
/// What to say of a lock that this pod holds and that another of its callers gets.
const WARM_HERE: &str =
    "this pod holds the lock itself, and callers that came earlier get it first";
/// What to say of a kept lock that was not given.
const KEPT_AND_IN_USE: &str = "its pod keeps the lock between leases and gives it to whoever asks \
     when it is idle; it did not within 250 ms, so it is in use";
/// What to say of a kept lock that could not be asked for.
const KEPT_AND_UNKNOWN: &str = "its pod keeps the lock between leases; whether it is in use could \
     not be found out, because its queue was not joined within 250 ms";

/// Answers a call.
pub(super) fn answer(leases: &mut Leases, call: CallId, outcome: Result<Acquired, AcquireError>) {
    leases.acquiring.calls.remove(&call);
    let reply = Effect::Reply(call, Reply::Acquired(Box::new(outcome)));
    leases.env.out.push(reply);
}

/// Records what is known of a lock, for callers whose time is up.
pub(super) fn record(
    leases: &mut Leases,
    resource: &Resource,
    known: Result<Acquired, AcquireError>,
) {
    if let Some(callers) = leases.acquiring.callers.get_mut(resource) {
        callers.record(known);
        leases.env.out.push(Effect::OutlookChanged);
    }
}

/// Answers the calls whose time is up.
pub(super) fn answer_overdue(leases: &mut Leases, claim: &Claim) {
    let (now, resource) = (leases.env.now, &claim.resource);
    let Some(callers) = leases.acquiring.callers.get_mut(resource) else {
        return;
    };
    let overdue = callers.take_overdue(now, claim.is_busy());
    if overdue.is_empty() {
        return;
    }
    let outcome = callers.answer();
    for one in overdue {
        let outcome = explain_kept(one.tried.as_ref(), outcome.clone(), claim.has_place);
        answer(leases, one.call, outcome);
    }
}

/// Answers a lock's caller with a lease. One that hung up, and may repeat its request, gets it then.
pub(super) fn deliver(
    leases: &mut Leases,
    resource: &Resource,
    caller: CallerId,
    lease: LeaseView,
) {
    let callers = leases.acquiring.callers.get_mut(resource);
    let Some(caller) = callers.and_then(|callers| callers.take(caller)) else {
        return leases.end_unheard(&lease.lease);
    };
    let id = lease.lease.clone();
    // What a call is told counts from its own arrival: by another's it would believe for too long.
    let Some((last, earlier)) = caller.calls.split_last() else {
        if let Some(held) = leases.own.lease_mut(&id) {
            held.unheard_until = Some(caller.kept_until);
        }
        return leases.own.expect_end(caller.kept_until);
    };
    for pending in earlier {
        let outcome = answers::replay(leases, &id, pending.arrived);
        let outcome = outcome.map(|view| granted(view, true));
        let outcome = outcome.map_err(|_lost| AcquireError::SessionLost);
        answer(leases, pending.call, outcome);
    }
    answer(leases, last.call, Ok(granted(lease, false)));
}

/// Answers a caller with an error.
pub(super) fn refuse(
    leases: &mut Leases,
    resource: &Resource,
    caller: CallerId,
    error: &AcquireError,
) {
    let callers = leases.acquiring.callers.get_mut(resource);
    let caller = callers.and_then(|callers| callers.take(caller));
    if let Some(caller) = caller {
        refuse_caller(leases, caller, error);
    }
}

fn refuse_caller(leases: &mut Leases, caller: Caller, error: &AcquireError) {
    for pending in caller.calls {
        let outcome = explain_kept(caller.tried.as_ref(), Err(error.clone()), false);
        answer(leases, pending.call, outcome);
    }
}

/// Answers those callers of a lock with an error who have waited for long, since the store gives no answer.
pub(super) fn refuse_late(
    leases: &mut Leases,
    resource: &Resource,
    since: Moment,
    error: &AcquireError,
) {
    let now = leases.env.now;
    let callers = leases.acquiring.callers.get_mut(resource);
    let late = callers.map(|callers| callers.take_late(since, now));
    for caller in late.unwrap_or_default() {
        refuse_caller(leases, caller, error);
    }
}

/// Answers all callers of a lock with an error.
pub(super) fn refuse_all(leases: &mut Leases, resource: &Resource, error: &AcquireError) {
    let callers = leases.acquiring.callers.get_mut(resource);
    let callers = callers.map(Callers::take_all).unwrap_or_default();
    for caller in callers {
        refuse_caller(leases, caller, error);
    }
}

/// Returns what a caller is told of a lock that serves a lease of this pod, or is warm here. A caller that
/// waits does not count itself.
pub(super) fn held_here(
    leases: &Leases,
    resource: &Resource,
    is_waiting: bool,
) -> Option<Acquired> {
    let by_lease = leases
        .own
        .held(resource)
        .map(|held| held_by_lease(leases, held));
    let warm = || held_warm(leases.own.warm(resource)?);
    let (holder, stored, hint) = by_lease.or_else(warm)?;
    let own = leases.session.live().map(Live::key);
    let waiting = leases.acquiring.waiting_for(&stored.value, own.as_ref());
    let entries = stored.value.waiters.entries();
    let index = entries
        .iter()
        .position(|waiter| Some(waiter.claimant.key()) == own);
    Some(Acquired::Held(Box::new(HeldView {
        holder,
        queue_length: waiting.saturating_sub(usize::from(is_waiting)),
        position: index.map(|index| index + 1),
        ahead: first_of(&entries[..index.unwrap_or(entries.len())]),
        silence: None,
        hint: Some(hint.into()),
    })))
}

fn held_by_lease<'a>(
    leases: &Leases,
    held: &'a Held,
) -> (HolderView, &'a Stored<Lock>, &'static str) {
    let holder = HolderView {
        owner: held.owner.clone(),
        pod: leases.session.pod().name.to_string(),
        token: held.lease.token,
        acquired_at: held.acquired_at,
        metadata: held.metadata.clone(),
        kept: false,
    };
    (holder, &held.stored, HELD_HERE)
}

/// A warm grant is on its way to the next caller.
fn held_warm(warm: &Warm) -> Option<(HolderView, &Stored<Lock>, &'static str)> {
    let grant = warm.stored.value.grant.as_ref()?;
    let holder = HolderView {
        kept: false,
        token: warm.tenure.last_token(),
        ..holder_view(&warm.stored.value, grant)
    };
    Some((holder, &warm.stored, WARM_HERE))
}

/// Returns who holds a lock, for people.
pub(in crate::agent) fn holder_view(lock: &Lock, grant: &Grant) -> HolderView {
    HolderView {
        owner: grant.holder.owner.clone(),
        pod: grant.holder.pod.name.to_string(),
        token: lock.token,
        acquired_at: grant.acquired_at,
        metadata: grant.metadata.clone(),
        kept: grant.kept,
    }
}

/// Returns the first of these queue entries, as many as are named.
fn first_of(entries: &[Waiter]) -> Vec<WaiterView> {
    let views = entries.iter().map(|waiter| WaiterView {
        owner: waiter.claimant.owner.clone(),
        pod: waiter.claimant.pod.name.to_string(),
        queued_at: waiter.queued_at,
    });
    views.take(AHEAD_MAX).collect()
}

pub(super) fn granted(lease: LeaseView, replayed: bool) -> Acquired {
    Acquired::Granted { lease, replayed }
}

/// Returns what a call is told, with what a kept lock that it queued for as a try needs to be understood.
fn explain_kept(
    tried: Option<&Acquired>,
    outcome: Result<Acquired, AcquireError>,
    has_joined: bool,
) -> Result<Acquired, AcquireError> {
    let Some(held) = tried else { return outcome };
    match outcome {
        Ok(held) if !has_joined => Ok(hinted(held, KEPT_AND_UNKNOWN)),
        // That somebody has the lock is known; more could not be found out.
        Err(AcquireError::Store(_)) => Ok(hinted(held.clone(), KEPT_AND_UNKNOWN)),
        // Its queue entry ends with this answer.
        outcome => outcome.map(|held| hinted(without_position(held), KEPT_AND_IN_USE)),
    }
}

fn without_position(mut acquired: Acquired) -> Acquired {
    if let Acquired::Held(held) = &mut acquired {
        held.position = None;
    }
    acquired
}

fn hinted(mut acquired: Acquired, words: &str) -> Acquired {
    if let Acquired::Held(held) = &mut acquired
        && held.holder.kept
        && held.hint.is_none()
    {
        held.hint = Some(words.into());
    }
    acquired
}

/// Returns the answer to a caller that cannot have the lock, from the lock as it was read. The grant may be
/// this session's own, on its way back. The claim's own queue entry is not counted.
pub(super) fn held_as_read(
    leases: &Leases,
    claim: &Claim,
    lock: &Lock,
    grant: &Grant,
    hint: Option<String>,
) -> Acquired {
    let own = claim.key(leases.session.pod());
    let entries = lock.waiters.entries();
    let index = entries.iter().position(|waiter| Some(waiter.key()) == own);
    // A session that has taken the lock again was renewed since.
    let silence = claim.silence.as_ref();
    let silence = silence.filter(|(observed, _)| *observed == grant.id);
    Acquired::Held(Box::new(HeldView {
        holder: holder_view(lock, grant),
        queue_length: entries.len() - usize::from(index.is_some()),
        position: index.map(|index| index + 1),
        ahead: first_of(&entries[..index.unwrap_or(entries.len())]),
        silence: silence.map(|(_, silence)| *silence),
        hint,
    }))
}
