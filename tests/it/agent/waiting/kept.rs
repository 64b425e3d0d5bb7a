//! Grants that are kept after their last lease, for an app that comes back.

use std::time::Duration;

use leasehold::agent::{AcquireError, AcquireRequest, Acquired, Life, OnTerm, Verified};
use leasehold::protocol::ids::Resource;
use leasehold::store::StoreError;

use super::local::{names, next_of, take};
use super::{granted, holder, queue, queued_waiter, release, request, settled, spawn, two_pods};
use crate::agent::{Pod, eventually};
use crate::memory_store::{Call, MemoryStore};

const KEEP: Duration = Duration::from_secs(60);

fn kept(wait: u64) -> AcquireRequest {
    AcquireRequest {
        keep: KEEP,
        ..request("app", wait)
    }
}

#[tokio::test(start_paused = true)]
async fn kept_lock_is_reacquired_without_a_write() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let mut lease = take(&a, kept(0)).await;
    let grant = store.lock("r").unwrap().grant.unwrap();
    assert!(grant.kept, "everybody can see it");
    let writes = store.writes();
    for wait in [0, 30, 0] {
        release(&a, &lease).await;
        let ended = a.agent.renew(&lease.lease, None, a.now());
        assert!(ended.is_err(), "its lease is over all the same");
        let next = take(&a, kept(wait)).await;
        assert_eq!(names(&next), next_of(&lease));
        lease = next;
    }
    assert_eq!(store.writes(), writes);
    release(&a, &lease).await;
    assert!(!a.is_free("r"));
    tokio::time::sleep(KEEP + Duration::from_millis(20)).await;
    assert!(a.is_free("r"), "for as long as was asked for");
    assert!(take(&a, kept(0)).await.token > lease.token);
}

#[tokio::test(start_paused = true)]
async fn lock_without_keep_is_released_at_once() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let lease = take(&a, kept(0)).await;
    release(&a, &lease).await;
    let plain = take(&a, request("app", 0)).await;
    assert_eq!(names(&plain), next_of(&lease));
    release(&a, &plain).await;
    assert!(a.is_free("r"));
    let lease = take(&a, request("app", 0)).await;
    release(&a, &lease).await;
    assert!(a.is_free("r"));
}

#[tokio::test(start_paused = true)]
async fn kept_lock_goes_to_a_try_or_waiter_of_another_pod() {
    for wait in [0, 60] {
        let (_, a, b) = two_pods();
        let first = take(&a, kept(0)).await;
        release(&a, &first).await;
        let since = b.now();
        let second = granted(spawn(&b.agent, request("b", wait))).await;
        assert!(second.token > first.token);
        assert!(b.now().since(since) < Duration::from_millis(100), "{wait}");
        assert_eq!(holder(&b).as_deref(), Some("b"));
        // The current holder did not ask to keep it.
        let third = spawn(&a.agent, kept(60));
        settled().await;
        assert!(!third.is_finished());
        release(&b, &second).await;
        assert!(granted(third).await.token > second.token);
    }
}

#[tokio::test(start_paused = true)]
async fn kept_lock_in_use_is_refused_after_a_quarter_second() {
    let (_, a, b) = two_pods();
    let first = take(&a, kept(0)).await;
    let since = b.now();
    let answer = spawn(&b.agent, request("b", 0)).await.unwrap();
    let took = b.now().since(since);
    let Ok(Acquired::Held(held)) = answer else {
        panic!("{answer:?}");
    };
    assert!(held.hint.as_ref().unwrap().contains("250 ms"), "{held:?}");
    assert!(took >= Duration::from_millis(250), "{took:?}");
    assert!(took < Duration::from_millis(300), "{took:?}");
    eventually("it left the queue", || queue(&b).is_empty()).await;
    assert!(a.agent.renew(&first.lease, None, a.now()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn waiter_gets_a_kept_lock_without_a_watch() {
    let (store, a, b) = two_pods();
    let first = take(&a, kept(0)).await;
    let _stalled = store.stall_watches();
    release(&a, &first).await;
    let since = b.now();
    granted(spawn(&b.agent, request("b", 60))).await;
    let took = b.now().since(since);
    assert!(
        took < Duration::from_secs(17),
        "{took:?}: two looks and a read"
    );
}

#[tokio::test(start_paused = true)]
async fn token_of_an_ended_lease_is_stale_while_its_grant_is_kept() {
    let (_, a, b) = two_pods();
    let resource = Resource::parse("r").unwrap();
    let first = take(&a, kept(0)).await;
    release(&a, &first).await;
    let verified = a.agent.verify(&resource, first.token).await.unwrap();
    assert!(matches!(verified, Verified::Stale { latest } if latest == first.token));
    let second = take(&a, kept(0)).await;
    let verified = a.agent.verify(&resource, first.token).await.unwrap();
    assert!(matches!(verified, Verified::Stale { latest } if latest == second.token));
    let verified = a.agent.verify(&resource, second.token).await.unwrap();
    assert_eq!(verified, Verified::Current { exact: true });
    let verified = b.agent.verify(&resource, first.token).await.unwrap();
    assert_eq!(
        verified,
        Verified::Current { exact: false },
        "others cannot tell"
    );
}

#[tokio::test(start_paused = true)]
async fn a_kept_grant_ends_with_its_session_and_with_its_lock() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let first = take(&a, kept(0)).await;
    release(&a, &first).await;
    store.revoke_session(&store.session_of("r").unwrap());
    tokio::time::sleep(Duration::from_secs(6)).await;
    let second = take(&a, kept(0)).await;
    assert_ne!(names(&second), next_of(&first), "it is another grant");
    assert!(second.token > first.token);
    release(&a, &second).await;
    store.delete_lock("r");
    settled().await;
    let third = take(&a, kept(0)).await;
    assert_ne!(names(&third), next_of(&second));
    assert!(third.token > second.token);
}

#[tokio::test(start_paused = true)]
async fn stopping_agent_keeps_no_grant() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let first = take(&a, kept(0)).await;
    release(&a, &first).await;
    let since = a.now();
    a.agent.shut_down(OnTerm::Wait).await;
    assert!(a.is_free("r"));
    assert!(a.now().since(since) < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn session_of_a_kept_grant_is_renewed_before_its_next_lease() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let first = take(&a, kept(0)).await;
    release(&a, &first).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!a.is_free("r"));
    let session = store.session_of("r").unwrap();
    let renewals = || store.session(&session).unwrap().renewals;
    let before = renewals();
    eventually("it is renewed", || renewals() > before).await;
    store.fail(Call::RenewSession, StoreError::Unavailable("away".into()));
    tokio::time::sleep(Duration::from_secs(7)).await;
    let answer = spawn(&a.agent, kept(0)).await.unwrap();
    assert!(
        matches!(answer, Err(AcquireError::Store(StoreError::Unavailable(_)))),
        "less than half is left, and it cannot be renewed: {answer:?}"
    );
    store.heal();
    let second = take(&a, kept(0)).await;
    assert!(second.token > first.token);
    assert!(second.valid_for > Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn kept_grant_is_replaced_once_its_tokens_are_used_up() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let mut lease = take(&a, kept(0)).await;
    let writes = store.writes();
    for _ in 1..1_000 {
        release(&a, &lease).await;
        let next = take(&a, kept(0)).await;
        assert_eq!(names(&next), next_of(&lease));
        lease = next;
    }
    assert_eq!(store.writes(), writes);
    release(&a, &lease).await;
    let next = take(&a, kept(0)).await;
    assert_ne!(names(&next), next_of(&lease));
    assert!(next.token > lease.token);
}

#[tokio::test(start_paused = true)]
async fn waiter_behind_a_busy_pod_is_served_without_a_watch() {
    let (store, a, b) = two_pods();
    let mut lease = take(&a, kept(0)).await;
    let _stalled = store.stall_watches();
    let other = queued_waiter(&b, "b", 240).await;
    let since = b.now();
    // The app comes back ten times a second, so that the grant is never idle for long.
    while !other.is_finished() {
        assert!(b.now().since(since) < Duration::from_secs(17));
        release(&a, &lease).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        match spawn(&a.agent, kept(0)).await.unwrap() {
            Ok(Acquired::Granted { lease: next, .. }) => lease = next,
            _ => break,
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(granted(other).await.token > lease.token);
}

#[tokio::test(start_paused = true)]
async fn try_on_a_kept_lock_is_refused_if_it_cannot_join() {
    let (store, _a, b) = two_pods();
    let pod = Pod::in_paused_time("c", &store);
    take(&pod, kept(0)).await;
    for error in [
        StoreError::Denied("no right to join".into()),
        StoreError::Unavailable("away".into()),
    ] {
        let failing = error.clone();
        store.on_call(move |call| {
            let joins = matches!(
                call,
                Call::JoinQueue | Call::UpdateLock | Call::CreateSession
            );
            joins.then(|| failing.clone())
        });
        let answer = spawn(&b.agent, request("b", 0)).await.unwrap();
        let Ok(Acquired::Held(held)) = answer else {
            panic!("{error}: {answer:?}");
        };
        assert_eq!(held.holder.pod, "c");
    }
}

#[tokio::test(start_paused = true)]
async fn request_and_repetition_awaiting_a_renewal_get_one_lease() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let first = take(&a, kept(0)).await;
    release(&a, &first).await;
    let session = store.session_of("r").unwrap();
    let renewals = || store.session(&session).unwrap().renewals;
    eventually("it is renewed", || renewals() > 0).await;
    store.fail(Call::RenewSession, StoreError::Unavailable("away".into()));
    tokio::time::sleep(Duration::from_secs(7)).await;
    let named = AcquireRequest {
        request_id: Some("one".into()),
        ..kept(0)
    };
    let (call, repetition) = (
        spawn(&a.agent, named.clone()),
        spawn(&a.agent, named.clone()),
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!call.is_finished() && !repetition.is_finished());
    store.heal();
    let (lease, again) = (granted(call).await, granted(repetition).await);
    assert_eq!(names(&lease), names(&again));
    assert_eq!(names(&lease), next_of(&first));
}

#[tokio::test(start_paused = true)]
async fn repeated_request_for_a_kept_lock_gets_its_own_lease() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let first = take(&a, kept(0)).await;
    release(&a, &first).await;
    let named = |keep| AcquireRequest {
        request_id: Some("one".into()),
        keep,
        ..kept(0)
    };
    let lease = take(&a, named(KEEP)).await;
    assert_eq!(names(&lease), next_of(&first));
    let again = take(&a, named(KEEP)).await;
    assert_eq!(names(&again), names(&lease));
    let other = spawn(&a.agent, named(Duration::ZERO)).await.unwrap();
    assert_eq!(other, Err(AcquireError::RequestIdReused));
    release(&a, &lease).await;
    let late = spawn(&a.agent, named(KEEP)).await.unwrap();
    assert!(
        matches!(late, Err(AcquireError::RequestEnded { .. })),
        "{late:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn kept_grant_ends_once_a_read_shows_it_gone() {
    type Take = fn(&MemoryStore);
    let delete: Take = |store| store.delete_lock("r");
    let free: Take = |store| {
        store.edit_lock("r", |lock| {
            lock.grant = None;
        });
    };
    for take_away in [delete, free] {
        let store = MemoryStore::default();
        let a = Pod::in_paused_time("a", &store);
        let first = take(&a, kept(0)).await;
        let _stalled = store.stall_watches();
        release(&a, &first).await;
        take_away(&store);
        let resource = Resource::parse("r").unwrap();
        let verified = a.agent.verify(&resource, first.token).await.unwrap();
        assert!(
            !matches!(verified, Verified::Current { .. }),
            "{verified:?}"
        );
        let next = take(&a, kept(0)).await;
        assert_ne!(names(&next), next_of(&first));
        assert!(next.token > first.token);
    }
}

#[tokio::test(start_paused = true)]
async fn token_stays_stale_while_its_grant_is_released() {
    let (store, a, b) = two_pods();
    let first = take(&a, kept(0)).await;
    release(&a, &first).await;
    store.fail(Call::UpdateLock, StoreError::Unavailable("away".into()));
    let _other = queued_waiter(&b, "other", 240).await;
    settled().await;
    let resource = Resource::parse("r").unwrap();
    let verified = a.agent.verify(&resource, first.token).await.unwrap();
    assert!(matches!(verified, Verified::Stale { .. }), "{verified:?}");
    assert!(!a.is_free("r"));
}

#[tokio::test(start_paused = true)]
async fn a_hold_can_keep_its_lock_too() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let hold = || AcquireRequest {
        life: Life::Connection {
            max_hold: Duration::from_mins(1),
        },
        wait: Duration::MAX,
        ..kept(0)
    };
    let first = a.agent.hold(hold(), a.now()).await.unwrap();
    let token = |store: &MemoryStore| store.lock("r").unwrap().token;
    let base = token(&store);
    drop(first);
    settled().await;
    assert!(!a.is_free("r"));
    let writes = store.writes();
    let second = take(&a, kept(0)).await;
    assert_eq!(second.token.get(), base.get() + 1);
    assert_eq!(store.writes(), writes);
}
