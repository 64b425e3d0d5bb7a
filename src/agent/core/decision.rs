//! What a claim does about a lock that was read, or is known: it writes the grant, joins the queue, or
//! has to wait.

use crate::agent::api::AcquireError;
use crate::protocol::key::GrantKey;
use crate::protocol::lock::{Decision, Lock, Refusal};
use crate::protocol::object::{StoreError, Stored};
use crate::protocol::queue::Waiter;

use super::claim::{Claim, Former, Step, Write};
use super::effect::{Answer, OpId, StoreCall};
use super::env::Machine;
use super::granted::{session_claim, write};
use super::leases::Leases;
use super::leftover::Uncertain;
use super::limits::CALL_LIMIT;
use super::next::{Next, Source};
use super::observed;
use super::reply::{answer_overdue, held_as_read, record};
use super::report::ClaimReport;
use super::session::Live;

/// How many queue entries of one pod the admission policies allow.
const ENTRIES_OF_A_POD: usize = 2;
/// Why a free lock is not taken.
const BEING_DELETED: &str = "the lock's object was deleted, and a finalizer keeps it; it is \
     recreated when it is gone";

/// Looks at a lock: whether the claim has it, can have it, or has to know its holder first.
pub(super) fn found(
    leases: &mut Leases,
    claim: &mut Claim,
    lock: Box<Stored<Lock>>,
    source: Source,
) -> Next {
    let (now, pod) = (leases.env.now, leases.session.pod().clone());
    let own = claim.key(&pod);
    if let Some(grant) = lock.value.grant.as_ref().filter(|g| g.id == claim.grant) {
        if own.as_ref() != Some(&grant.key()) {
            // Another pod, or another session, has the lock by this id. No grant can come by it.
            observed::report_foreign(leases, &claim.resource, grant);
            return Next::Abandon(AcquireError::GrantEnded);
        }
        // A read that a try caused may be faster than the watch.
        let is_late = matches!(source, Source::Read(sent) if sent >= claim.pace.read_at);
        if claim.queued.is_some() && is_late {
            leases.env.out.report(ClaimReport::WatchLate);
            leases.watching.is_late(lock.version, &mut leases.env);
        }
        return Next::Granted(lock);
    }
    let is_over = |reported: &mut Box<Stored<Lock>>| reported.version < lock.version;
    if claim.was_granted || claim.reported.take_if(is_over).is_some() {
        // No grant comes back.
        return Next::Abandon(AcquireError::GrantEnded);
    }
    if matches!(source, Source::Read(_)) && !claim.is_queued_in(&lock.value, &pod) {
        if claim.has_place {
            // Its entry may have become a grant that has ended: an id is granted once.
            return Next::Anew(lock, source);
        }
        record_nothing_left(claim, &lock);
    }
    let Some(first) = leases.acquiring.first(&claim.resource, now) else {
        return Next::Recheck;
    };
    let is_moving = claim.pace.observe(lock.version);
    let Some(grant) = &lock.value.grant else {
        return Next::Decide(lock, source);
    };
    let held = held_as_read(leases, claim, &lock.value, grant, None);
    if leases.session.live().map(Live::key) != Some(grant.holder.key()) {
        // A caller whose time is up before more is known is told at least this.
        record(leases, &claim.resource, Ok(held.clone()));
    }
    if first.waits()
        && let Source::Read(sent) = source
        && let Some(callers) = leases.acquiring.callers.get_mut(&claim.resource)
    {
        // Tries do not depend on what becomes of those that wait.
        callers.settle(held.clone(), sent, None);
        answer_overdue(leases, claim);
        if !leases.acquiring.has(&claim.resource, first.id) {
            return Next::Recheck;
        }
    }
    let third = leases.session.period() / 3;
    let has_room = first.waits() && claim.pace.has_room(&lock.value, third, now);
    if claim.is_named_by(&lock.value, &pod) {
        return Next::Decide(lock, source);
    }
    if first.waits() && now < claim.pace.not_before {
        // It was read for a try.
        claim.wait_until(claim.pace.not_before);
        return Next::Wait;
    }
    if has_room {
        return Next::Decide(lock, source);
    }
    if first.waits() && is_moving {
        // While others write the lock, those in its queue judge its holder.
        return Next::held(lock, source, held);
    }
    Next::Judge(lock, source)
}

/// Records that a read shows neither a grant nor a queue entry of the claim.
fn record_nothing_left(claim: &mut Claim, lock: &Stored<Lock>) {
    claim.queued = None;
    if matches!(claim.uncertain, Some(Uncertain::Swap(on)) if lock.version != on) {
        claim.uncertain = None;
    }
    claim.settle_writes();
}

/// Decides about a lock that a write may get.
pub(super) fn decide(
    leases: &mut Leases,
    claim: &mut Claim,
    lock: Box<Stored<Lock>>,
    source: Source,
) -> Result<Next, AcquireError> {
    let Some(first) = leases.acquiring.first(&claim.resource, leases.env.now) else {
        return Ok(Next::Recheck);
    };
    let Some(protocol_claim) = session_claim(leases, claim, &first)? else {
        return Ok(Next::NeedSession(Some(lock)));
    };
    let mint = leases.env.horizon.mint()?;
    let (value, at) = (&lock.value, lock.version);
    let decision = if first.waits() {
        value.acquire_or_queue(at, &mint, &protocol_claim)
    } else {
        value.acquire(at, &mint, &protocol_claim)
    };
    Ok(match decision {
        Decision::Granted(next) => {
            claim.granted_for = Some(first.id);
            let call = StoreCall::UpdateLock(lock.clone(), next);
            write(leases, claim, lock, Write::Grant, call)
        }
        Decision::Queued(waiter) => queue(leases, claim, lock, waiter),
        Decision::AlreadyGranted => Next::Granted(lock),
        Decision::Refused(Refusal::TokenExhausted(error)) => Next::Fail(error.into()),
        Decision::Refused(Refusal::BeingDeleted) => {
            // A waiter reads again until the object is gone, and recreates it.
            let error = StoreError::Unavailable(BEING_DELETED.into());
            record(leases, &claim.resource, Err(error.into()));
            Next::BackOff
        }
        Decision::AlreadyQueued(entry) if entry.session.pod_uid != leases.session.pod().uid => {
            // It is that pod's to remove, and while it is there no store takes another entry of this
            // session. Retries would fail until the lock is free.
            Next::Fail(queued_by_another_pod(&lock.value, &entry))
        }
        Decision::AlreadyQueued(entry) if entry.id != claim.grant => {
            leave_old_place(leases, claim, entry);
            Next::BackOff
        }
        Decision::Refused(Refusal::Held | Refusal::QueueFull) | Decision::AlreadyQueued(_) => {
            Next::Judge(lock, source)
        }
    })
}

/// Joins the queue. Former sessions of this pod may have left as many entries as it may have, and others
/// remove these only when the lock's grant ends: those whose session is over leave first. Agents without a pod
/// have no such limit, and the same empty uid: the entries of others are not theirs to remove.
fn queue(
    leases: &mut Leases,
    claim: &mut Claim,
    lock: Box<Stored<Lock>>,
    waiter: Box<Waiter>,
) -> Next {
    let own = waiter.key();
    let entries = lock.value.waiters.entries().iter().map(Waiter::key);
    let others = entries.filter(|entry| entry.session.pod_uid == own.session.pod_uid);
    let others = others.filter(|entry| entry.session.id != own.session.id);
    let mut others: Vec<GrantKey> = others.collect();
    if !own.session.pod_uid.is_empty()
        && others.len() >= ENTRIES_OF_A_POD
        && let Some(entry) = others.pop()
    {
        claim.step = Step::Former(Box::new(Former {
            op: read_session(leases, claim, &entry),
            entry,
            left: others,
            leaves: false,
            lock,
            waiter,
        }));
        return Next::Wait;
    }
    join(leases, claim, lock, waiter)
}

fn join(
    leases: &mut Leases,
    claim: &mut Claim,
    lock: Box<Stored<Lock>>,
    waiter: Box<Waiter>,
) -> Next {
    claim.granted_for = None;
    let call = StoreCall::JoinLock(lock.clone(), waiter);
    write(leases, claim, lock, Write::Join, call)
}

fn read_session(leases: &mut Leases, claim: &Claim, entry: &GrantKey) -> OpId {
    let machine = Machine::Claim(claim.resource.clone());
    let call = StoreCall::GetSession(entry.session.id.clone());
    leases.env.call(machine, call, CALL_LIMIT)
}

/// Takes the answer to a read of a former session.
pub(super) fn former_read(
    leases: &mut Leases,
    claim: &mut Claim,
    mut former: Box<Former>,
    answer: Answer,
) -> Next {
    let session = match answer.into_session() {
        Ok(session) => session,
        Err(error) => return Next::Fail(error.into()),
    };
    // One that lives is another agent's in this pod.
    if session.is_none_or(|session| session.value.revoked.is_some()) {
        leave_old_place(leases, claim, former.entry.clone());
        former.leaves = true;
    }
    if let Some(entry) = former.left.pop() {
        former.op = read_session(leases, claim, &entry);
        former.entry = entry;
        claim.step = Step::Former(former);
        return Next::Wait;
    }
    if former.leaves {
        return Next::BackOff;
    }
    if leases
        .acquiring
        .first(&claim.resource, leases.env.now)
        .is_none()
    {
        return Next::Recheck;
    }
    join(leases, claim, former.lock, former.waiter)
}

/// A queue entry of this pod that no caller here waits for; it leaves before another caller can join.
fn leave_old_place(leases: &mut Leases, claim: &Claim, entry: GrantKey) {
    if !leases.releases.has(&entry.id) {
        // The next read shows what came of it.
        leases.look_for_leftover(&claim.resource, entry, None);
    }
}

/// Why a caller cannot queue beside this entry.
fn queued_by_another_pod(lock: &Lock, entry: &GrantKey) -> AcquireError {
    let mut entries = lock.waiters.entries().iter();
    let made = entries.find(|waiter| waiter.key() == *entry);
    let pod = made.map_or_else(String::new, |made| made.claimant.pod.name.to_string());
    AcquireError::QueuedByAnotherPod { pod }
}
