//! A backup that was restored with a bumped revision: any response that shows the jump ends the session in the same
//! step, because the backup may have forgotten its grants.
//!
//! Renewals and lists of held locks are blocked here: they would show it too.

use std::collections::BTreeMap;

use futures::poll;
use leasehold::agent::{AcquireError, LeaseError, LeaseView, Released};
use leasehold::protocol::ids::Resource;
use leasehold::protocol::lease::Loss;
use leasehold::protocol::lock::Grant;
use leasehold::protocol::time::WallTime;
use leasehold::protocol::token::Token;
use leasehold::store::StoreError;

use super::waiting::{granted, queued_waiter, request, spawn};
use super::{Pod, eventually};
use crate::memory_store::{Call, Half, MemoryStore};

type Tell = fn(&MemoryStore);

const BUMP: u64 = 1_000_000_000;
const LOST: LeaseError = LeaseError::Lost(Loss::StoreRestored);

/// A pod with a lease, whose store was restored since, and that has not observed it. The lock `r` is in the backup,
/// and is free.
async fn a_restore_unheard_of() -> (MemoryStore, Pod, LeaseView) {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    store.make_lock("r");
    let lease = pod.lease("held").await;
    restore(&store).await;
    assert!(lease_of(&pod, &lease).is_ok());
    (store, pod, lease)
}

/// Restores the store; the watches are open again when this returns.
async fn restore(store: &MemoryStore) {
    store.on_call(|call| {
        let would_show_it = matches!(call, Call::RenewSession | Call::ListHeldLocks);
        would_show_it.then(|| StoreError::Unavailable("connection refused".into()))
    });
    let watches = store.watches();
    store.go_forward_in_silence(BUMP);
    eventually("the watch goes on", || store.watches() > watches).await;
}

fn lease_of(pod: &Pod, lease: &LeaseView) -> Result<LeaseView, LeaseError> {
    pod.agent.renew(&lease.lease, None, pod.now())
}

fn is_from_after_it(lease: &LeaseView) -> bool {
    lease.token.get() > BUMP * 1_000
}

#[tokio::test(start_paused = true)]
async fn acquire_whose_write_reveals_the_jump_leaves_no_grant() {
    let (store, pod, held) = a_restore_unheard_of().await;
    let before = store.session_of("held");
    assert_eq!(pod.acquire("r").await, Err(AcquireError::SessionLost));
    assert_eq!(lease_of(&pod, &held), Err(LOST));
    eventually("what it got is released", || pod.is_free("r")).await;
    let token = store.lock("r").unwrap().token.get();
    assert!(token < BUMP, "{token}: none is raised for nobody");
    let again = pod.lease("r").await;
    assert!(is_from_after_it(&again));
    assert_ne!(store.session_of("r"), before);
    assert!(lease_of(&pod, &again).is_ok());
}

#[tokio::test(start_paused = true)]
async fn acquire_whose_read_reveals_the_jump_uses_a_new_session() {
    let (store, pod, held) = a_restore_unheard_of().await;
    let before = store.session_of("held");
    store.edit_lock("r", |lock| lock.transitions += 1);
    let lease = pod.lease("r").await;
    assert_eq!(lease_of(&pod, &held), Err(LOST));
    assert!(is_from_after_it(&lease));
    assert_ne!(store.session_of("r"), before);
    assert!(lease_of(&pod, &lease).is_ok());
}

#[tokio::test(start_paused = true)]
async fn creating_a_lock_reveals_the_jump() {
    let (_store, pod, held) = a_restore_unheard_of().await;
    let lease = pod.lease("unknown").await;
    assert_eq!(lease_of(&pod, &held), Err(LOST));
    assert!(lease_of(&pod, &lease).is_ok());
}

#[tokio::test(start_paused = true)]
async fn waiter_is_served_under_a_new_session() {
    let (store, pod, held) = a_restore_unheard_of().await;
    let before = store.session_of("held");
    let lease = granted(spawn(&pod.agent, request("app", 60))).await;
    assert_eq!(lease_of(&pod, &held), Err(LOST));
    assert!(is_from_after_it(&lease));
    assert_ne!(store.session_of("r"), before);
    assert!(lease_of(&pod, &lease).is_ok());
}

#[tokio::test(start_paused = true)]
async fn release_reveals_the_jump() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let (held, other) = (pod.lease("held").await, pod.lease("other").await);
    restore(&store).await;
    assert_eq!(pod.agent.release(&other.lease).await, Ok(Released::Done));
    assert_eq!(lease_of(&pod, &held), Err(LOST));
}

#[tokio::test(start_paused = true)]
async fn read_of_one_lock_reveals_the_jump() {
    let (store, pod, held) = a_restore_unheard_of().await;
    store.edit_lock("r", |lock| lock.transitions += 1);
    let other = Resource::parse("r").unwrap();
    pod.agent.verify(&other, held.token).await.unwrap();
    assert_eq!(lease_of(&pod, &held), Err(LOST));
}

#[tokio::test(start_paused = true)]
async fn watch_events_reveal_the_jump() {
    let tellings: [(&str, Tell); 3] = [
        ("that it is held", |store| {
            store.edit_lock("held", |lock| lock.transitions += 1);
        }),
        ("that it is gone", |store| {
            store.edit_lock("held", |lock| lock.grant = None);
        }),
        ("how far the store is", |store| {
            for _ in 0..300 {
                store.edit_lock("r", |lock| lock.transitions += 1);
            }
        }),
    ];
    for (what, tell) in tellings {
        let (store, pod, held) = a_restore_unheard_of().await;
        tell(&store);
        eventually(what, || lease_of(&pod, &held).is_err()).await;
        assert_eq!(lease_of(&pod, &held), Err(LOST), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn late_list_response_does_not_end_the_new_session() {
    let (store, pod, held) = a_restore_unheard_of().await;
    let gate = store.hold(Call::ListLocks, Half::Answer);
    let mut listing = Box::pin(pod.agent.locks("", 10, None));
    assert!(poll!(&mut listing).is_pending());
    assert_eq!(pod.acquire("r").await, Err(AcquireError::SessionLost));
    assert_eq!(lease_of(&pod, &held), Err(LOST));
    let lease = pod.lease("another").await;
    gate.open();
    assert!(listing.await.is_ok());
    assert!(lease_of(&pod, &lease).is_ok());
}

#[tokio::test(start_paused = true)]
async fn session_edited_after_the_restore_is_lost_as_well() {
    let (store, pod, held) = a_restore_unheard_of().await;
    store.heal();
    store.touch_session(&store.session_of("held").unwrap());
    eventually("the renewal shows it", || lease_of(&pod, &held).is_err()).await;
    assert_eq!(lease_of(&pod, &held), Err(LOST));
}

#[tokio::test(start_paused = true)]
async fn token_from_before_the_restore_is_raised_before_its_use() {
    let store = MemoryStore::default();
    store.go_forward(BUMP);
    let (a, b) = (
        Pod::in_paused_time("a", &store),
        Pod::in_paused_time("b", &store),
    );
    let first = a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 60).await;
    // The pod that hands the lock over has not observed the jump.
    store.edit_lock("r", |lock| {
        let (head, rest) = lock.waiters.split_head().unwrap();
        lock.grant = Some(Grant {
            id: head.grant,
            holder: head.claimant,
            metadata: BTreeMap::new(),
            acquired_at: WallTime(0),
            kept: false,
        });
        lock.waiters = rest;
        lock.token = Token::from_raw(7_000);
    });
    let second = granted(waiting).await;
    assert!(second.token > first.token, "{second:?} after {first:?}");
    assert_eq!(store.lock("r").unwrap().token, second.token);
}
