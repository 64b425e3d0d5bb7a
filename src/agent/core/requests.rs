//! Requests for locks: what is answered without the store, and what becomes a caller.

use crate::agent::api::{AcquireError, AcquireRequest, Acquired, LeaseError};
use crate::protocol::ids::LeaseId;
use crate::protocol::time::Moment;

use super::advance;
use super::answers;
use super::begun::{self, FromWarm};
use super::callers::PLACE_KEPT_FOR;
use super::effect::{CallId, Effect, Reply};
use super::history::RequestKey;
use super::leases::Leases;
use super::reply::{answer, granted, held_here, refuse_all};
use super::report::ClaimReport;
use super::session::Resuming;

/// Takes a request for a lock: it is answered at once, or the caller waits for the answer.
pub(super) fn acquire(leases: &mut Leases, call: CallId, request: AcquireRequest, arrived: Moment) {
    if !leases.session.is_draining()
        && let Some(resuming) = leases.session.resuming_mut()
    {
        return resuming.defer(call, request, arrived, leases.env.now);
    }
    match answer_at_once(leases, &request, arrived) {
        Ok(None) => {}
        Ok(Some(acquired)) => return answer(leases, call, Ok(acquired)),
        Err(error) => return answer(leases, call, Err(error)),
    }
    let resource = request.resource.clone();
    leases.acquiring.calls.insert(call, resource.clone());
    let callers = leases.acquiring.callers.entry(resource.clone());
    callers
        .or_default()
        .add(call, request, arrived, leases.env.now);
    advance::run(leases, &resource);
}

/// A client hung up before its call was answered.
pub(super) fn hang_up(leases: &mut Leases, call: CallId) {
    let now = leases.env.now;
    let resuming = leases.session.resuming_mut();
    if resuming.is_some_and(|resuming| resuming.hang_up(call)) {
        return leases.env.out.push(Effect::Reply(call, Reply::Done));
    }
    let Some(resource) = leases.acquiring.calls.remove(&call) else {
        return;
    };
    let callers = leases.acquiring.callers.get_mut(&resource);
    let waited = callers.and_then(|callers| callers.hang_up(call, now));
    if let Some((owner, arrived)) = waited {
        let report = ClaimReport::HungUp(resource.clone(), owner, now.since(arrived));
        leases.env.out.report(report);
    }
    // The driver need not keep what it would have answered through.
    leases.env.out.push(Effect::Reply(call, Reply::Done));
    advance::run(leases, &resource);
}

/// No client received the answer with this lease. It is released: at once, or when its request was not
/// repeated in time.
pub(super) fn undelivered(leases: &mut Leases, lease: &LeaseId) {
    let until = leases.env.now.after(PLACE_KEPT_FOR);
    let held = leases.own.lease_mut(lease);
    let has_request = held.is_some_and(|held| {
        let has_request = held.request.is_some();
        if has_request && !held.replayed {
            held.unheard_until = Some(until);
        }
        has_request
    });
    if has_request {
        leases.own.expect_end(until);
    } else {
        leases.end_unheard(lease);
    }
}

/// The agent takes no new leases: all callers are told so.
pub(super) fn drain(leases: &mut Leases) {
    let resuming = leases.session.resuming_mut();
    for deferred in resuming.map(Resuming::take_deferred).unwrap_or_default() {
        answer(leases, deferred.call, Err(AcquireError::ShuttingDown));
    }
    for resource in leases.acquiring.resources() {
        refuse_all(leases, &resource, &AcquireError::ShuttingDown);
        advance::run(leases, &resource);
    }
}

/// Returns the answer to a request that needs no call to the store: from a warm grant, as before if it
/// is repeated, or a refusal.
fn answer_at_once(
    leases: &mut Leases,
    request: &AcquireRequest,
    arrived: Moment,
) -> Result<Option<Acquired>, AcquireError> {
    let now = leases.env.now;
    let key = RequestKey::of(request);
    if let Some(repeated) = answer_repeated(leases, key.as_ref(), request, arrived)? {
        return Ok(Some(repeated));
    }
    leases.end_if_over(&request.resource);
    let callers = leases.acquiring.callers.get_mut(&request.resource);
    let same = callers.zip(key.as_ref());
    if let Some(same) = same.and_then(|(callers, key)| callers.caller_of(key)) {
        // It becomes one more call of that caller.
        let is_same = same.request.body() == request.body();
        return if is_same {
            Ok(None)
        } else {
            Err(AcquireError::RequestIdReused)
        };
    }
    let load = leases.own.len() + leases.acquiring.len() + leases.releases.len();
    let limit = leases.acquiring.config.max_leases;
    let is_full = load >= limit;
    if !is_full && !leases.acquiring.is_awaited(&request.resource, now) {
        // It is answered in this step, so its client cannot hang up in between.
        let from_warm = begun::begin_from_warm(leases, request, arrived);
        if let FromWarm::Lease(lease) = from_warm {
            return Ok(Some(granted(*lease, false)));
        }
    }
    if request.wait.is_zero() && leases.own.held(&request.resource).is_some() {
        return Ok(held_here(leases, &request.resource, false));
    }
    if leases.session.is_draining() {
        return Err(AcquireError::ShuttingDown);
    }
    let max_waiting = leases.acquiring.config.max_waiting;
    if !request.wait.is_zero() && leases.acquiring.waiting() >= max_waiting {
        let limit = max_waiting;
        return Err(AcquireError::TooManyWaiting { limit });
    }
    if is_full {
        return Err(AcquireError::TooManyLeases { limit });
    }
    Ok(None)
}

/// Returns the answer to a request whose `requestId` was answered before.
///
/// The same request gets the same lease. When that is over, taking the lock again would give it to an
/// app that may have done its work and gone: a late repetition is told so. `None` if the lease was
/// forgotten meanwhile.
fn answer_repeated(
    leases: &mut Leases,
    key: Option<&RequestKey>,
    request: &AcquireRequest,
    arrived: Moment,
) -> Result<Option<Acquired>, AcquireError> {
    let now = leases.env.now;
    let Some(answered) = key.and_then(|key| leases.history.answer(key, now)) else {
        return Ok(None);
    };
    if let Some((life, keep, metadata)) = &answered.body
        && (*life, *keep, metadata) != request.body()
    {
        return Err(AcquireError::RequestIdReused);
    }
    let lease = answered.lease;
    match answers::replay(leases, &lease, arrived) {
        Ok(view) => Ok(Some(granted(view, true))),
        Err(LeaseError::Unknown) => Ok(None),
        Err(why) => Err(AcquireError::RequestEnded { lease, why }),
    }
}
