//! What a claim does after a conflict or an error: it pauses and tries again, or its callers are told.

use crate::agent::api::AcquireError;
use crate::protocol::object::StoreError;

use super::claim::{Claim, longest_pause};
use super::leases::Leases;
use super::limits::{REQUEST_LIMIT, REQUEST_PAUSE};
use super::next::Next;
use super::reply::{record, refuse, refuse_all, refuse_late};

/// Why a try was not answered.
const STILL_CHANGING: &str =
    "the lock kept changing, or its last lease in this pod is still being released";

/// Whose waiting a failed attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// The next attempt may succeed.
    Nobody,
    /// What was refused is in the first caller's own request.
    First,
    /// It would be refused to every caller.
    All,
}

/// How long nothing but errors came, and what is at stake.
#[derive(Clone, Copy, Debug)]
struct Failure {
    /// Whether there is a place in the queue to lose.
    has_place: bool,
    /// For longer than a caller without one waits for an answer.
    is_too_long: bool,
    /// For longer than an API server that starts answers so.
    is_settled: bool,
}

/// Pauses after a conflict.
pub(super) fn back_off(leases: &mut Leases, claim: &mut Claim) -> Next {
    let Some(first) = leases.acquiring.first(&claim.resource, leases.env.now) else {
        return Next::Recheck;
    };
    (claim.queued, claim.pace.failing_since) = (None, None);
    let callers = leases.acquiring.callers.get(&claim.resource);
    if callers.is_some_and(|callers| !callers.is_known()) {
        let error = StoreError::Unavailable(STILL_CHANGING.into());
        record(leases, &claim.resource, Err(error.into()));
    }
    let longest = longest_pause(first.patience());
    let until = claim.pace.back_off(longest, first.waits(), &mut leases.env);
    claim.wait_until(until);
    Next::Wait
}

/// An attempt failed. Callers with a place in the queue go on: it may outlast the failure. Others are
/// told soon.
pub(super) fn fail(leases: &mut Leases, claim: &mut Claim, error: AcquireError) -> Next {
    let now = leases.env.now;
    let since = *claim.pace.failing_since.get_or_insert(now);
    let session = claim.session.as_ref();
    if session.is_some_and(|session| leases.deadline_of(session).is_none()) {
        abandon(leases, claim);
    }
    let Some(first) = leases.acquiring.first(&claim.resource, now) else {
        claim.wait_until(now);
        return Next::Recheck;
    };
    let lasted = now.since(since.max(first.since()));
    let failure = Failure {
        has_place: claim.has_place,
        is_too_long: lasted >= REQUEST_LIMIT,
        is_settled: lasted >= leases.session.period(),
    };
    match whom_it_ends(&error, first.waits(), failure) {
        Ends::First => {
            refuse(leases, &claim.resource, first.id, &error);
            claim.wait_until(now);
            return Next::Recheck;
        }
        Ends::All if is_transient(&error) => {
            // Those who came later have not waited for long.
            refuse_late(leases, &claim.resource, since, &error);
            record(leases, &claim.resource, Err(error));
        }
        Ends::All => {
            refuse_all(leases, &claim.resource, &error);
            claim.wait_until(now);
            return Next::Recheck;
        }
        Ends::Nobody => {
            if let AcquireError::Store(_) = error {
                record(leases, &claim.resource, Err(error));
            }
        }
    }
    // Whatever was believed of the lock is read again.
    claim.pace.read_at = now;
    let longest = if first.waits() {
        leases.session.period() / 10
    } else {
        REQUEST_PAUSE
    };
    let until = claim.pace.back_off(longest, first.waits(), &mut leases.env);
    claim.wait_until(until);
    Next::Wait
}

/// No grant can come by this claim any more, or no caller needs it: what it may have left in the store is
/// looked for, and the next attempt is another claim.
pub(super) fn abandon(leases: &mut Leases, claim: &mut Claim) {
    settle(leases, claim);
    let next = Claim::new(claim.resource.clone(), &mut leases.env);
    let before = std::mem::replace(claim, next);
    claim.pace = before.pace;
}

/// Looks for what the store may have for a claim that is given up.
pub(super) fn settle(leases: &mut Leases, claim: &Claim) {
    let key = claim.key(leases.session.pod());
    if let Some(grant) = key.filter(|_| claim.is_sent) {
        leases.look_for_leftover(&claim.resource, grant, claim.uncertain);
    }
}

/// No caller is left: the claim is over, once its call is answered. What a write had for an effect is known
/// only then.
pub(super) fn without_callers(leases: &mut Leases, claim: &mut Claim) -> Next {
    claim.granted_for = None;
    leases.acquiring.callers.remove(&claim.resource);
    leases.callers_gone(&claim.resource);
    if claim.has_call() {
        return Next::Wait;
    }
    settle(leases, claim);
    Next::Done
}

const fn is_transient(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Store(error) if error.is_transient())
}

fn whom_it_ends(error: &AcquireError, waits: bool, failure: Failure) -> Ends {
    match error {
        // Another session is begun, or another place taken; if that fails, its error says why.
        AcquireError::SessionLost | AcquireError::GrantEnded if waits => Ends::Nobody,
        AcquireError::Store(error)
            if error.is_transient() && (failure.has_place || !failure.is_too_long) =>
        {
            Ends::Nobody
        }
        // An API server that starts answers before it has read the roles, and forbids what was allowed a
        // moment ago. A place in the queue was got with the rights that are missing.
        AcquireError::Store(StoreError::Denied(_) | StoreError::Unauthenticated(_))
            if failure.has_place && !failure.is_settled =>
        {
            Ends::Nobody
        }
        AcquireError::SessionLost
        | AcquireError::GrantEnded
        | AcquireError::Store(StoreError::Invalid(_) | StoreError::DeniedByPolicy(_)) => {
            Ends::First
        }
        _ => Ends::All,
    }
}
