//! The invariants that the store checks on every write, as the API server does by the rules in the
//! CRDs.
//!
//! They are not access control: only one process writes. They reject a faulty write of an agent
//! before it breaks a promise.

use crate::protocol::lock::{Grant, Lock};
use crate::protocol::queue::QUEUE_MAX;
use crate::protocol::session::Session;
use crate::protocol::token::{LEASES_PER_GRANT, Token};
use crate::store::StoreError;

/// Checks that a lock may become `next`.
///
/// # Errors
/// `Invalid` with the broken rule.
pub(crate) fn check_lock(before: &Lock, next: &Lock) -> Result<(), StoreError> {
    if next.resource != before.resource {
        return refuse("spec.resource is immutable");
    }
    if next.token < before.token {
        return refuse("status.token can never be decreased: fencing depends on it");
    }
    match &next.grant {
        None => {}
        Some(grant) if before.names_grant(&grant.id) => check_holder(before, grant)?,
        Some(_) => check_new_token(before.token, next.token)?,
    }
    check_queue(next)
}

/// A lease id names one grant, and a grant has one holder.
fn check_holder(before: &Lock, grant: &Grant) -> Result<(), StoreError> {
    let is_same = before.grant.as_ref().is_some_and(|before| {
        let (before, now) = (&before.holder, &grant.holder);
        before.session == now.session && before.pod.uid == now.pod.uid
    });
    if is_same {
        return Ok(());
    }
    refuse("the holder of a grant is immutable; another holder needs a new grant")
}

fn check_new_token(before: Token, next: Token) -> Result<(), StoreError> {
    if next.get() >= before.get().saturating_add(LEASES_PER_GRANT) {
        return Ok(());
    }
    refuse(
        "a new grant needs a token at least 1000 above the last one: the previous grant owns the \
         numbers in between",
    )
}

fn check_queue(next: &Lock) -> Result<(), StoreError> {
    let waiters = next.waiters.entries();
    if next.grant.is_none() && !waiters.is_empty() {
        return refuse(
            "a free lock has no waiters: hand the lock to the first waiter in the same write that \
             releases it",
        );
    }
    if waiters.iter().any(|waiter| next.names_grant(&waiter.grant)) {
        return refuse("a grant that holds the lock cannot wait for it too");
    }
    if waiters.len() > QUEUE_MAX {
        return refuse("a lock has at most 32 waiters");
    }
    let is_twice = waiters.iter().enumerate().any(|(index, waiter)| {
        let mut others = waiters[..index].iter();
        others.any(|other| other.claimant.session == waiter.claimant.session)
    });
    if is_twice {
        return refuse("a session has at most one entry in a queue");
    }
    Ok(())
}

/// Checks that a session may become `next`.
///
/// # Errors
/// `Invalid` with the broken rule.
pub(crate) fn check_session(before: &Session, next: &Session) -> Result<(), StoreError> {
    let is_same = before.id == next.id
        && before.pod == next.pod
        && before.ttl == next.ttl
        && before.agent_version == next.agent_version;
    if !is_same {
        return refuse("the spec of a session is immutable; start another session");
    }
    if next.renewals < before.renewals {
        return refuse("status.renewals can never be decreased");
    }
    if before.revoked.is_none() {
        return Ok(());
    }
    if next.revoked != before.revoked {
        return refuse("status.revoked is final and immutable");
    }
    if next.renewals != before.renewals {
        return refuse("a revoked session can never be renewed; start another session");
    }
    Ok(())
}

fn refuse(words: &str) -> Result<(), StoreError> {
    Err(StoreError::Invalid(words.to_owned()))
}
