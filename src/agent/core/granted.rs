//! The writes of a claim, and what follows when the lock is its own: the token is raised if need be, the
//! owner's name is corrected, and the first caller gets a lease.

use crate::agent::api::AcquireError;
use crate::protocol::key::GrantKey;
use crate::protocol::lock::{Claim as ProtocolClaim, Lock};
use crate::protocol::object::{StoreError, Stored};
use crate::protocol::session::Claimant;
use crate::protocol::token::Mint;

use super::begun::{self, NewLease};
use super::callers::Caller;
use super::claim::{Claim, Step, Write};
use super::effect::{Answer, StoreCall};
use super::env::Machine;
use super::holder::record_strict;
use super::leases::Leases;
use super::leftover::Uncertain;
use super::limits::CALL_LIMIT;
use super::next::{Next, Source};
use super::reply::{deliver, held_as_read};
use super::report::ClaimReport;

/// Sends a write that was decided on a version.
pub(super) fn write(
    leases: &mut Leases,
    claim: &mut Claim,
    on: Box<Stored<Lock>>,
    write: Write,
    call: StoreCall,
) -> Next {
    let deadline = claim.session.as_ref();
    let deadline = deadline.and_then(|session| leases.deadline_of(session));
    let Some(deadline) = deadline.filter(|deadline| leases.env.now < *deadline) else {
        return Next::Fail(AcquireError::SessionLost);
    };
    claim.is_sent = true;
    let machine = Machine::Claim(claim.resource.clone());
    // Closes the race of two that read the same free (or expired) lock: one write for each version.
    let op = leases
        .env
        .call_before(machine, call, CALL_LIMIT, Some(deadline));
    claim.step = Step::Writing(op, on, write);
    Next::Wait
}

/// Takes the answer to a write.
pub(super) fn written(
    leases: &mut Leases,
    claim: &mut Claim,
    on: Box<Stored<Lock>>,
    what: &Write,
    answer: Answer,
) -> Result<Next, AcquireError> {
    let error = match answer.into_lock() {
        Ok(Some(stored)) => return Ok(applied(leases, claim, stored)),
        Ok(None) => StoreError::no_result(),
        Err(error) => error,
    };
    Ok(match (error, what) {
        (StoreError::Conflict, Write::Grant) => return lost_race(leases, claim, on),
        // The lock is held, so its state is read at once.
        (StoreError::Conflict | StoreError::NotFound(_), Write::Rename | Write::Raise) => {
            claim.wait_until(leases.env.now);
            Next::Recheck
        }
        (StoreError::Conflict | StoreError::NotFound(_), _) => Next::BackOff,
        (StoreError::QueueFull, _) => held_still(leases, claim, on, None),
        (StoreError::DeniedByPolicy(reason), Write::TakeOver) => {
            let hint = record_strict(leases.peers, reason, &mut leases.env);
            held_still(leases, claim, on, Some(hint))
        }
        (error, Write::Rename) if !error.is_transient() => {
            let report = ClaimReport::RenameFailed(claim.resource.clone(), error);
            leases.env.out.report(report);
            Next::Granted(on)
        }
        (error, what) => {
            record_error(claim, &on, what, &error);
            Next::Fail(error.into())
        }
    })
}

/// Records what the store may have after a write that failed.
fn record_error(claim: &mut Claim, on: &Stored<Lock>, what: &Write, error: &StoreError) {
    match (error, what) {
        (StoreError::Ambiguous(_), Write::Join) => claim.uncertain = Some(Uncertain::Join),
        // What the join left is looked for until it cannot be applied any more, and a grant with it.
        (StoreError::Ambiguous(_), _) if matches!(claim.uncertain, Some(Uncertain::Join)) => {}
        (StoreError::Ambiguous(_), _) => claim.uncertain = Some(Uncertain::Swap(on.version)),
        // It was not applied.
        (StoreError::Unavailable(_), Write::Grant | Write::TakeOver) => claim.settle_writes(),
        _ => {}
    }
}

/// Another write of a free lock came first. Most likely it was a grant that still holds the lock: a caller
/// that waits joins its queue without another read. If not, the join conflicts, too, and changes nothing.
fn lost_race(
    leases: &mut Leases,
    claim: &mut Claim,
    on: Box<Stored<Lock>>,
) -> Result<Next, AcquireError> {
    let first = leases.acquiring.first(&claim.resource, leases.env.now);
    let first = first.filter(|first| first.waits() && !first.request.preferred);
    let Some(first) = first else {
        return Ok(Next::BackOff);
    };
    let Some(protocol_claim) = session_claim(leases, claim, &first)? else {
        return Ok(Next::BackOff);
    };
    claim.granted_for = None;
    let call = StoreCall::JoinLock(on.clone(), Box::new(protocol_claim.to_waiter()));
    Ok(write(leases, claim, on, Write::Join, call))
}

/// The lock has the holder that it had when the write was decided.
fn held_still(leases: &Leases, claim: &Claim, on: Box<Stored<Lock>>, hint: Option<String>) -> Next {
    match &on.value.grant {
        Some(grant) => {
            let held = held_as_read(leases, claim, &on.value, grant, hint);
            Next::held(on, Source::Known, held)
        }
        None => Next::BackOff,
    }
}

fn applied(leases: &mut Leases, claim: &Claim, stored: Box<Stored<Lock>>) -> Next {
    let pod = leases.session.pod();
    let key = claim.key(pod);
    if key.is_some_and(|key| stored.value.is_held_by(&key)) {
        return Next::Granted(stored);
    }
    match &stored.value.grant {
        Some(grant) if claim.is_queued_in(&stored.value, pod) => {
            let held = held_as_read(leases, claim, &stored.value, grant, None);
            Next::held(stored, Source::Known, held)
        }
        // It served another.
        _ => Next::Found(stored, Source::Known),
    }
}

/// The lock names the claim's grant: makes a lease of it for the first caller. Who that is may change
/// until then.
pub(super) fn granted(
    leases: &mut Leases,
    claim: &mut Claim,
    stored: Box<Stored<Lock>>,
) -> Result<Next, AcquireError> {
    (claim.queued, claim.has_place) = (None, true);
    claim.pace.succeed();
    claim.uncertain = Some(Uncertain::Swap(stored.version));
    (claim.was_granted, claim.is_sent) = (true, true);
    // A caller that the grant was written for does not lose it to one that arrived since.
    let first = claim.granted_for.and_then(|caller| {
        let callers = leases.acquiring.callers.get(&claim.resource)?;
        callers.get(caller).cloned()
    });
    let first = first.or_else(|| leases.acquiring.first(&claim.resource, leases.env.now));
    let Some(first) = first else {
        // The grant is released as a leftover.
        claim.wait_until(leases.env.now);
        return Ok(Next::Recheck);
    };
    let key = claim.key(leases.session.pod());
    let grant = key.ok_or(AcquireError::SessionLost)?;
    let mint = leases.env.horizon.mint()?;
    if mint.must_raise(stored.value.token, stored.version) {
        return raise(leases, claim, stored, &mint, &grant);
    }
    let Some(protocol_claim) = session_claim(leases, claim, &first)? else {
        return Ok(Next::NeedSession(Some(stored)));
    };
    // A place that another app of this pod queued for gets the name of who has it now, so that people
    // see the right one. The lock is held either way.
    if let Some(next) = stored.value.in_the_name_of(&protocol_claim)
        && !claim.once.renames
    {
        claim.once.renames = true;
        let call = StoreCall::UpdateLock(stored.clone(), Box::new(next));
        return Ok(write(leases, claim, stored, Write::Rename, call));
    }
    let new = NewLease {
        request: &first.request,
        arrived: first.arrived(),
        grant,
        stored: *stored,
        gone_at: claim.gone_at,
    };
    Ok(match begun::begin(leases, new) {
        Ok(lease) => {
            deliver(leases, &claim.resource, first.id, lease);
            // The next caller's claim is another.
            *claim = Claim::new(claim.resource.clone(), &mut leases.env);
            Next::Recheck
        }
        Err(error) => Next::Abandon(error),
    })
}

/// A token that was made by an agent that had not seen that a backup was restored is raised by a second
/// write before any app hears of it.
fn raise(
    leases: &mut Leases,
    claim: &mut Claim,
    stored: Box<Stored<Lock>>,
    mint: &Mint,
    grant: &GrantKey,
) -> Result<Next, AcquireError> {
    let (token, version) = (stored.value.token, stored.version);
    let report = ClaimReport::TokenRaised(claim.resource.clone(), token, version);
    leases.env.out.report(report);
    let raised = stored.value.rebase(version, mint, grant)?;
    let raised = raised.ok_or(AcquireError::SessionLost)?;
    // Closes the race with a force release: the token is raised on the version that we hold.
    let call = StoreCall::UpdateLock(stored.clone(), Box::new(raised));
    Ok(write(leases, claim, stored, Write::Raise, call))
}

/// Returns the claim as it is written; `None` if the session is to be begun or renewed first.
pub(super) fn session_claim(
    leases: &mut Leases,
    claim: &mut Claim,
    first: &Caller,
) -> Result<Option<ProtocolClaim>, AcquireError> {
    let now = leases.env.now;
    let fixed = claim.session.as_ref();
    if fixed.is_some_and(|session| leases.deadline_of(session).is_none()) {
        return Err(AcquireError::SessionLost);
    }
    let Some(live) = leases.session.live().filter(|live| !live.is_stale(now)) else {
        return Ok(None);
    };
    let session = live.id().clone();
    if *claim.session.get_or_insert_with(|| session.clone()) != session {
        return Err(AcquireError::SessionLost);
    }
    let claimant = Claimant {
        owner: first.request.owner.clone(),
        pod: leases.session.pod().clone(),
        session,
        session_ttl: leases.session.session_ttl(),
    };
    Ok(Some(claim.in_the_name_of(first, claimant, &leases.env)))
}
