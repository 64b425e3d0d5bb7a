//! What a claim does next: read, decide, write, until the lock names its grant.
//!
//! The grant's id is made before the first write. Whenever an answer does not say what happened, the
//! lock is read: the own id in it means that the write was applied. No write is repeated blindly; each
//! is sent on the version that it was decided on, but for the one that joins the queue.
//!
//! A session is begun only for a write: a caller that is merely refused costs the store one read (but for
//! a lock that is marked as kept, whose queue is worth a try). A hand-over is reported by the watch. The
//! lock is read again every third of the period all the same: a watch only makes things fast.

use crate::agent::api::AcquireError;
use crate::protocol::ids::Resource;
use crate::protocol::lock::Lock;
use crate::protocol::object::{StoreError, Stored};
use crate::protocol::time::Moment;

use super::begun::{self, FromWarm};
use super::callers::{Caller, Callers};
use super::claim::{Claim, Step};
use super::decision::{decide, former_read, found};
use super::effect::{Answer, Effect, OpId, StoreCall};
use super::env::Machine;
use super::failure::{abandon, back_off, fail, without_callers};
use super::granted::{granted, written};
use super::judgement::{held, judge, judged};
use super::leases::Leases;
use super::limits::CALL_LIMIT;
use super::next::{Next, Source};
use super::reply::{answer_overdue, deliver, held_here, record};

/// Does for the callers of a lock what can be done now.
pub(super) fn run(leases: &mut Leases, resource: &Resource) {
    with_claim(leases, resource, |_, _| Next::Recheck);
}

/// Takes the answer to a call of a claim.
pub(super) fn answered(leases: &mut Leases, resource: &Resource, op: OpId, answer: Answer) {
    with_claim(leases, resource, |leases, claim| {
        take_answer(leases, claim, op, answer)
    });
}

/// Takes the session that a claim needs.
pub(super) fn session_ready(
    leases: &mut Leases,
    resource: &Resource,
    session: Result<(), AcquireError>,
) {
    with_claim(leases, resource, |leases, claim| {
        let Step::Session(lock) = &mut claim.step else {
            return Next::Recheck;
        };
        let lock = lock.take();
        claim.wait_until(leases.env.now);
        match (session, lock) {
            (Err(error), _) => Next::Fail(error),
            (Ok(()), Some(lock)) => Next::Found(lock, Source::Known),
            (Ok(()), None) => Next::Recheck,
        }
    });
}

fn with_claim(
    leases: &mut Leases,
    resource: &Resource,
    step: impl FnOnce(&mut Leases, &mut Claim) -> Next,
) {
    let claim = leases.acquiring.take(resource);
    let has_callers = leases.acquiring.callers.contains_key(resource);
    let claim =
        claim.or_else(|| has_callers.then(|| Claim::new(resource.clone(), &mut leases.env)));
    let Some(mut claim) = claim else { return };
    let next = step(leases, &mut claim);
    if continue_with(leases, &mut claim, next) {
        let callers = leases.acquiring.callers.get(resource);
        let is_busy = claim.is_busy();
        let timeout = callers.and_then(|callers| callers.timeout(leases.env.now, is_busy));
        let step = match claim.step {
            Step::Until(moment) => Some(moment),
            _ => None,
        };
        let due = step.into_iter().chain(timeout).min();
        leases.acquiring.put(claim, due);
    }
    leases.acquiring.recount(resource);
}

/// Continues until there is nothing to do before an answer, a change or a moment. Returns whether the claim
/// is still needed.
fn continue_with(leases: &mut Leases, claim: &mut Claim, mut next: Next) -> bool {
    loop {
        next = match next {
            // A grant that was reported while a call was in flight does not wait for a pause to end.
            Next::Wait if claim.has_news() => Next::Recheck,
            Next::Wait => return true,
            Next::Done => {
                leases.env.out.push(Effect::SomethingEnded);
                return false;
            }
            Next::Recheck => recheck(leases, claim),
            Next::Found(lock, source) => found(leases, claim, lock, source),
            Next::Anew(lock, source) => {
                abandon(leases, claim);
                Next::Found(lock, source)
            }
            Next::NeedSession(lock) => need_session(leases, claim, lock),
            Next::Decide(lock, source) => Next::or_fail(decide(leases, claim, lock, source)),
            Next::Judge(lock, source) => judge(leases, claim, lock, source),
            Next::Held(lock, source, outlook) => held(leases, claim, lock, source, &outlook),
            Next::Granted(lock) => Next::or_fail(granted(leases, claim, lock)),
            Next::BackOff => back_off(leases, claim),
            Next::Fail(error) => fail(leases, claim, error),
            Next::Abandon(error) => {
                abandon(leases, claim);
                Next::Fail(error)
            }
        }
    }
}

/// Does what can be done now for the first caller.
fn recheck(leases: &mut Leases, claim: &mut Claim) -> Next {
    let now = leases.env.now;
    answer_overdue(leases, claim);
    let first = leases.acquiring.first(&claim.resource, now);
    let Some(first) = first else {
        return without_callers(leases, claim);
    };
    if !matches!(claim.step, Step::Until(_)) {
        return Next::Wait;
    }
    if let Some(next) = serve_here(leases, claim, &first) {
        return next;
    }
    let session = claim.session.as_ref();
    if session.is_some_and(|session| leases.deadline_of(session).is_none()) {
        return Next::Fail(AcquireError::SessionLost);
    }
    if claim.has_place_of_another_kind(&first, leases.session.pod()) {
        // Its place in the queue is taken by preference, and cannot be changed: a new one is.
        abandon(leases, claim);
    }
    if let Some(reported) = claim.reported.take() {
        let key = claim.key(leases.session.pod());
        if key.is_some_and(|key| reported.value.is_held_by(&key)) {
            return Next::Granted(reported);
        }
    }
    let callers = leases.acquiring.callers.get(&claim.resource);
    let needs_read = callers.is_some_and(|callers| callers.needs_read(now));
    if !needs_read && let Some(moment) = claim.pauses_until(now, first.waits()) {
        claim.wait_until(moment);
        return Next::Wait;
    }
    let known = match &claim.queued {
        Some(queued) if now < claim.pace.read_at && !needs_read => Some(queued.clone()),
        Some(_) => None,
        None => leases.free_locks.take(&claim.resource).map(Box::new),
    };
    match known {
        Some(lock) => Next::Found(lock, Source::Known),
        None => read(leases, claim),
    }
}

/// Serves a caller from what this agent has. `None` if the store is to be asked.
fn serve_here(leases: &mut Leases, claim: &mut Claim, first: &Caller) -> Option<Next> {
    let (now, resource) = (leases.env.now, claim.resource.clone());
    leases.end_if_over(&resource);
    if record_held_here(leases, claim, first) {
        return Some(Next::Recheck);
    }
    if let Some(reported) = &claim.reported {
        let grant = reported.value.grant.as_ref();
        if !grant.is_some_and(|grant| leases.own.has(&resource, &grant.id)) {
            return None;
        }
        // Of what was served already.
        claim.reported = None;
    }
    if let Some(warm) = leases.own.warm(&resource) {
        if warm.share.is_used_up(now) || warm.release_request().is_some() {
            leases.release_warm(&resource);
            return None;
        }
        return match begun::begin_from_warm(leases, &first.request, first.arrived()) {
            FromWarm::Lease(lease) => {
                claim.pace.succeed();
                deliver(leases, &resource, first.id, *lease);
                Some(Next::Recheck)
            }
            FromWarm::RenewFirst => Some(Next::NeedSession(None)),
            FromWarm::Nothing => None,
        };
    }
    let held = leases.own.held(&resource)?;
    let is_asked = held.release_request().is_some();
    if held.share.is_used_up(now) || !held.tenure.may_serve() || is_asked {
        return None;
    }
    // The end of the lease wakes the callers.
    let slow = now.after(leases.session.period() / 3);
    claim.wait_until(held.share.ends_at().unwrap_or(slow));
    Some(Next::Wait)
}

/// Records who holds the lock, if this agent has it itself; tries are answered without the store. Returns
/// whether that changes who is first.
fn record_held_here(leases: &mut Leases, claim: &Claim, first: &Caller) -> bool {
    let (now, resource) = (leases.env.now, &claim.resource);
    let is_held = leases.own.held(resource).is_some();
    if !is_held && (leases.own.warm(resource).is_none() || !first.waits()) {
        return false;
    }
    let callers = leases.acquiring.callers.get(resource);
    if callers.is_some_and(Callers::has_tries)
        && let Some(held) = held_here(leases, resource, false)
        && let Some(callers) = leases.acquiring.callers.get_mut(resource)
    {
        callers.settle(held, now, None);
        answer_overdue(leases, claim);
    }
    if let Some(held) = held_here(leases, resource, true) {
        record(leases, resource, Ok(held));
    }
    let next = leases.acquiring.first(resource, now);
    next.is_none_or(|next| next.id != first.id)
}

/// Continues when there is a session with at least half of its TTL left.
fn need_session(leases: &mut Leases, claim: &mut Claim, lock: Option<Box<Stored<Lock>>>) -> Next {
    claim.step = Step::Session(lock);
    let (resource, listed) = (claim.resource.clone(), claim.listed.take());
    leases.session.need(resource, listed, &mut leases.env);
    Next::Wait
}

fn read(leases: &mut Leases, claim: &mut Claim) -> Next {
    let resource = claim.resource.clone();
    // Without a session, together with the store's revision, which the session would have to ask for
    // next.
    let call = match leases.session.live() {
        Some(_) => StoreCall::GetLock(resource),
        None => StoreCall::GetLockWithRevision(resource),
    };
    let op = call_for(leases, claim, call);
    claim.step = Step::Reading(op, leases.env.now);
    Next::Wait
}

fn call_for(leases: &mut Leases, claim: &Claim, call: StoreCall) -> OpId {
    let machine = Machine::Claim(claim.resource.clone());
    leases.env.call(machine, call, CALL_LIMIT)
}

fn take_answer(leases: &mut Leases, claim: &mut Claim, op: OpId, answer: Answer) -> Next {
    match std::mem::replace(&mut claim.step, Step::Until(leases.env.now)) {
        Step::Reading(reading, sent) if reading == op => read_answered(leases, claim, sent, answer),
        Step::Creating(creating) if creating == op => match answer.into_lock() {
            Ok(Some(lock)) => Next::Found(lock, Source::Known),
            // Another agent created it meanwhile, or an answer of ours was lost.
            Err(StoreError::Conflict) | Ok(None) => read(leases, claim),
            Err(error) => Next::Fail(error.into()),
        },
        Step::Judging(judging) => judged(leases, claim, judging, op, answer),
        Step::Former(former) if former.op == op => former_read(leases, claim, former, answer),
        Step::Writing(writing, on, write) if writing == op => {
            Next::or_fail(written(leases, claim, on, &write, answer))
        }
        step => {
            claim.step = step;
            Next::Wait
        }
    }
}

fn read_answered(leases: &mut Leases, claim: &mut Claim, sent: Moment, answer: Answer) -> Next {
    let lock = match answer {
        Answer::LockWithRevision(look) => {
            claim.listed = Some(look.revision);
            look.lock.map(Box::new)
        }
        Answer::WentBack(error) => return Next::Fail(error.into()),
        answer => match answer.into_lock() {
            Ok(lock) => lock,
            Err(error) => return Next::Fail(error.into()),
        },
    };
    if let Some(lock) = lock {
        claim.once.creates = false;
        return Next::Found(lock, Source::Read(sent));
    }
    if leases
        .acquiring
        .first(&claim.resource, leases.env.now)
        .is_none()
    {
        return Next::Recheck;
    }
    if std::mem::replace(&mut claim.once.creates, true) {
        claim.once.creates = false;
        let error = StoreError::Unavailable("the lock object comes and goes".into());
        return Next::Fail(error.into());
    }
    let call = StoreCall::CreateLock(claim.resource.clone());
    claim.step = Step::Creating(call_for(leases, claim, call));
    Next::Wait
}
