//! The invariants of a lock, which a store enforces against every writer.

use leasehold::protocol::lock::Lock;
use leasehold::protocol::token::Token;
use leasehold::store::{StoreError, Stored};

use super::{Adapter, Party, resource};

/// Writes a violation of a rule, and asserts that nothing changed.
async fn refused(party: &Party, lock: &Stored<Lock>, next: &Lock) {
    let answer = party.locks.update(lock, next).await;
    assert!(matches!(answer, Err(StoreError::Invalid(_))), "{answer:?}");
    let read = party.read(&lock.value.resource).await;
    assert_eq!((&read.value, read.version), (&lock.value, lock.version));
}

pub(crate) async fn token_never_decreases(adapter: &impl Adapter) {
    let a = adapter.a();
    let held = a.make_and_take(&resource("r"), "g-a").await;
    for token in [Token::NONE, Token::from_raw(held.value.token.get() - 1)] {
        let next = Lock {
            token,
            ..held.value.clone()
        };
        refused(a, &held, &next).await;
    }
    let free = a.release(&held, "g-a").await;
    assert_eq!(free.value.token, held.value.token);
}

pub(crate) async fn a_new_grant_has_a_larger_token(adapter: &impl Adapter) {
    let a = adapter.a();
    let held = a.make_and_take(&resource("r"), "g-a").await;
    let free = a.release(&held, "g-a").await;
    let base = held.value.token.get();
    let mut grant = held.value.grant.clone().expect("held");
    grant.id = "g-b".into();
    for token in [base, base + 999] {
        let next = Lock {
            grant: Some(grant.clone()),
            token: Token::from_raw(token),
            ..free.value.clone()
        };
        refused(a, &free, &next).await;
    }
}

pub(crate) async fn a_grant_keeps_its_holder(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let held = a.make_and_take(&resource("r"), "g-a").await;
    let mut next = held.value.clone();
    let grant = next.grant.as_mut().expect("held");
    grant.holder = b.claim("g-a").claimant;
    refused(a, &held, &next).await;
}
