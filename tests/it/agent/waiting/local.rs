//! Callers of one pod that are served from one grant: those in line, and those who come back.

use std::time::Duration;

use leasehold::agent::{AcquireError, AcquireRequest, Acquired, LeaseView, Life, OnTerm, Verified};
use leasehold::protocol::fair_share::{LEASES_BEFORE_OTHERS, OTHERS_WAIT};
use leasehold::protocol::ids::Resource;
use leasehold::store::StoreError;

use super::{granted, holder, in_line, queue, release, request, settled, spawn, two_pods};
use crate::agent::{Pod, eventually};
use crate::memory_store::{Call, MemoryStore};

const KEEP: Duration = Duration::from_secs(60);

fn kept(wait: u64) -> AcquireRequest {
    AcquireRequest {
        keep: KEEP,
        ..request("app", wait)
    }
}

async fn take(pod: &Pod, request: AcquireRequest) -> LeaseView {
    granted(spawn(&pod.agent, request)).await
}

fn next_of(lease: &LeaseView) -> (String, u64) {
    let (grant, n) = lease.lease.as_str().rsplit_once('.').unwrap();
    let n: u64 = n.parse().unwrap();
    (format!("{grant}.{}", n + 1), lease.token.get() + 1)
}

fn names(lease: &LeaseView) -> (String, u64) {
    (lease.lease.to_string(), lease.token.get())
}

#[tokio::test(start_paused = true)]
async fn a_line_is_served_from_the_grant_that_its_pod_has_without_a_write() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let mut lease = a.lease("r").await;
    let line: Vec<_> = ["one", "two", "three"]
        .map(|owner| spawn(&a.agent, request(owner, 240)))
        .into_iter()
        .collect();
    settled().await;
    let writes = store.writes();
    for waiting in line {
        assert!(!waiting.is_finished());
        release(&a, &lease).await;
        let next = granted(waiting).await;
        assert_eq!(names(&next), next_of(&lease));
        lease = next;
    }
    assert_eq!(store.writes(), writes);
    assert!(queue(&a).is_empty());
    release(&a, &lease).await;
    assert!(a.is_free("r"), "with nobody in line it is given back");
}

#[tokio::test(start_paused = true)]
async fn others_wait_for_a_tenth_of_a_second_and_are_served_in_their_turn() {
    let (_, a, b) = two_pods();
    let first = a.lease("r").await;
    let local = spawn(&a.agent, request("local", 240));
    let other = in_line(&b, "other", 240).await;
    settled().await;
    assert_eq!(queue(&b), ["other"], "the local one has no place yet");
    tokio::time::sleep(OTHERS_WAIT).await;
    assert_eq!(queue(&b), ["other", "local"], "the bound is reached");
    release(&a, &first).await;
    let second = granted(other).await;
    release(&b, &second).await;
    assert!(granted(local).await.token > second.token);
}

#[tokio::test(start_paused = true)]
async fn others_wait_for_sixteen_leases_at_most() {
    let (_, a, b) = two_pods();
    let mut lease = a.lease("r").await;
    let locals: Vec<_> = (0..40)
        .map(|n| spawn(&a.agent, request(&format!("local-{n}"), 240)))
        .collect();
    settled().await;
    let other = in_line(&b, "other", 240).await;
    settled().await;
    let mut served = 0;
    for local in locals {
        release(&a, &lease).await;
        settled().await;
        if !local.is_finished() {
            break;
        }
        lease = granted(local).await;
        served += 1;
    }
    assert_eq!(served, LEASES_BEFORE_OTHERS);
    assert!(granted(other).await.token > lease.token);
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_silent_app_goes_to_the_next_in_its_pod() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let short = AcquireRequest {
        life: Life::Ttl(Duration::from_secs(3)),
        ..request("silent", 0)
    };
    let silent = take(&a, short).await;
    let next = spawn(&a.agent, request("next", 240));
    let since = a.now();
    let lease = granted(next).await;
    assert!(a.now().since(since) >= silent.valid_for);
    assert_eq!(names(&lease), next_of(&silent));
}

#[tokio::test(start_paused = true)]
async fn an_app_that_comes_back_is_served_without_a_write() {
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
async fn what_nobody_asked_to_keep_is_given_back_at_once() {
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
async fn a_kept_lock_is_given_to_who_tries_or_waits_elsewhere() {
    for wait in [0, 60] {
        let (_, a, b) = two_pods();
        let first = take(&a, kept(0)).await;
        release(&a, &first).await;
        let since = b.now();
        let second = granted(spawn(&b.agent, request("b", wait))).await;
        assert!(second.token > first.token);
        assert!(b.now().since(since) < Duration::from_millis(100), "{wait}");
        assert_eq!(holder(&b).as_deref(), Some("b"));
        // It was not kept from the one who has it now.
        let third = spawn(&a.agent, kept(60));
        settled().await;
        assert!(!third.is_finished());
        release(&b, &second).await;
        assert!(granted(third).await.token > second.token);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_lock_in_use_is_refused_after_a_quarter_of_a_second() {
    let (_, a, b) = two_pods();
    let first = take(&a, kept(0)).await;
    let since = b.now();
    let answer = spawn(&b.agent, request("b", 0)).await.unwrap();
    let took = b.now().since(since);
    let Ok(Acquired::Held {
        hint: Some(hint), ..
    }) = answer
    else {
        panic!("{answer:?}");
    };
    assert!(hint.contains("250 ms"), "{hint}");
    assert!(took >= Duration::from_millis(250), "{took:?}");
    assert!(took < Duration::from_millis(300), "{took:?}");
    eventually("it left the queue", || queue(&b).is_empty()).await;
    assert!(a.agent.renew(&first.lease, None, a.now()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_kept_lock_gets_it_although_the_watch_says_nothing() {
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
async fn the_token_of_an_ended_lease_is_stale_although_its_grant_is_kept() {
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
async fn a_stopping_agent_keeps_nothing() {
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
async fn a_session_is_renewed_for_a_kept_grant_and_before_its_next_lease() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let first = take(&a, kept(0)).await;
    release(&a, &first).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!a.is_free("r"));
    store.fail(Call::RenewSession, StoreError::Unavailable("away".into()));
    tokio::time::sleep(Duration::from_secs(8)).await;
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
async fn when_its_tokens_are_used_up_a_grant_is_taken_anew() {
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
