//! Lines of defence that no other test here is about: each of these was written for a seeded
//! bug (tests/seeded-bugs.md) that no test noticed, or only in some runs.

use std::time::Duration;

use leasehold::agent::{AcquireError, Acquired, LeaseView};
use leasehold::store::StoreError;

use super::waiting::{granted, request, spawn};
use super::{Pod, eventually};
use crate::memory_store::{Call, Half, MemoryStore};

/// The default TTL is 15 s, of which a holder trusts 14.25.
#[tokio::test(start_paused = true)]
async fn renewal_counts_from_when_it_was_sent() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let lease = pod.lease("r").await;
    let gate = store.hold(Call::RenewSession, Half::Answer);
    eventually("a renewal is under way", || gate.arrived() > 0).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    gate.open();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let told = pod.agent.lease(&lease.lease, pod.now()).unwrap();
    assert!(told.valid_for > Duration::from_secs(12), "it was renewed");
    let most = Duration::from_millis(14_250 - 2_000);
    let valid_for = told.valid_for;
    assert!(valid_for < most, "{valid_for:?}: counted from the answer");
}

/// The bump is too small to be detected as one: only the list shows it.
#[tokio::test]
async fn token_exceeds_every_listed_revision() {
    const BUMP: u64 = 50_000_000;
    let store = MemoryStore::default();
    store.make_lock("r");
    store.go_forward(BUMP);
    let lease = Pod::new("a", &store, |_| {}).lease("r").await;
    let token = lease.token;
    assert!(
        token.get() > BUMP * 1_000,
        "{token} is not above what was listed"
    );
}

#[tokio::test]
async fn missing_session_expires_only_after_its_ttl() {
    let store = MemoryStore::default();
    let gone = Pod::new("gone", &store, |_| {});
    let old = gone.lease("r").await;
    store.delete_session(&store.session_of("r").unwrap());
    let other = Pod::new("other", &store, |_| {});
    let held = |answer| matches!(answer, Ok(Acquired::Held { .. }));
    assert!(
        held(other.acquire("r").await),
        "dead as soon as it was missed"
    );
    other.clock.advance(Duration::from_millis(15_740));
    assert!(held(other.acquire("r").await));
    other.clock.advance(Duration::from_millis(10));
    assert!(other.lease("r").await.token > old.token);
}

fn grant_of(lease: &LeaseView) -> &str {
    lease.lease.as_str().rsplit_once('.').unwrap().0
}

#[tokio::test(start_paused = true)]
async fn grant_serves_no_caller_while_its_release_is_under_way() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let first = pod.lease("r").await;
    let gate = store.hold(Call::UpdateLock, Half::Request);
    let (agent, lease) = (pod.agent.clone(), first.lease.clone());
    let release = tokio::spawn(async move { agent.release(&lease).await });
    eventually("the release is on its way", || gate.arrived() > 0).await;
    let next = spawn(&pod.agent, request("next", 0));
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.open();
    release.await.unwrap().unwrap();
    let next = granted(next).await;
    assert_ne!(grant_of(&next), grant_of(&first), "one grant served both");
    assert!(next.token > first.token);
}

#[tokio::test(start_paused = true)]
async fn acquire_without_a_clear_answer_is_read_again_and_released() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let first = pod.lease("r").await;
    pod.agent.release(&first.lease).await.unwrap();
    // Only a read can show the grant, and there is none while the caller waits.
    let _stalled = store.stall_watches();
    store.fail(Call::GetLock, StoreError::Unavailable("away".into()));
    store.lose_answer(Call::UpdateLock);
    let refused = pod.acquire("r").await;
    assert!(
        matches!(refused, Err(AcquireError::Store(_))),
        "{refused:?}"
    );
    assert!(!pod.is_free("r"), "its write did land");
    store.heal();
    eventually("it is released", || pod.is_free("r")).await;
}
