//! Waiting callers of one pod that are served from one grant.

use std::time::Duration;

use leasehold::agent::{AcquireRequest, LeaseView, Life};
use leasehold::protocol::fair_share::{LEASES_BEFORE_OTHERS, OTHERS_WAIT};
use leasehold::protocol::ids::Resource;

use super::{granted, queue, queued_waiter, release, request, settled, spawn, two_pods};
use crate::agent::{Pod, eventually};
use crate::memory_store::{Call, Half, MemoryStore};

pub(super) async fn take(pod: &Pod, request: AcquireRequest) -> LeaseView {
    granted(spawn(&pod.agent, request)).await
}

pub(super) fn next_of(lease: &LeaseView) -> (String, u64) {
    let (grant, n) = lease.lease.as_str().rsplit_once('.').unwrap();
    let n: u64 = n.parse().unwrap();
    (format!("{grant}.{}", n + 1), lease.token.get() + 1)
}

pub(super) fn names(lease: &LeaseView) -> (String, u64) {
    (lease.lease.to_string(), lease.token.get())
}

#[tokio::test(start_paused = true)]
async fn local_waiters_are_served_from_their_pods_grant() {
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
async fn waiters_of_other_pods_get_their_turn_after_100_ms() {
    let (_, a, b) = two_pods();
    let first = a.lease("r").await;
    let local = spawn(&a.agent, request("local", 240));
    let other = queued_waiter(&b, "other", 240).await;
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
async fn waiters_of_other_pods_get_their_turn_after_16_leases() {
    let (_, a, b) = two_pods();
    let mut lease = a.lease("r").await;
    let locals: Vec<_> = (0..40)
        .map(|n| spawn(&a.agent, request(&format!("local-{n}"), 240)))
        .collect();
    settled().await;
    let other = queued_waiter(&b, "other", 240).await;
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
async fn silent_apps_lock_goes_to_the_next_caller_in_its_pod() {
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
async fn lead_goes_to_the_first_waiter_and_not_to_the_same_pod() {
    let store = MemoryStore::default();
    let (a, b) = (
        Pod::in_paused_time("a", &store),
        Pod::in_paused_time("b", &store),
    );
    let run = |owner: &str| AcquireRequest {
        resource: Resource::parse("election:e").unwrap(),
        ..request(owner, 240)
    };
    let lead = take(
        &a,
        AcquireRequest {
            wait: Duration::ZERO,
            ..run("a")
        },
    )
    .await;
    let local = spawn(&a.agent, run("local"));
    let preferred = AcquireRequest {
        preferred: true,
        ..run("preferred")
    };
    let preferred = spawn(&b.agent, preferred);
    eventually("it stands in the queue", || {
        store.lock("election:e").unwrap().waiters.len() == 1
    })
    .await;
    release(&a, &lead).await;
    let next = granted(preferred).await;
    assert!(next.token > lead.token);
    settled().await;
    assert!(!local.is_finished());
    release(&b, &next).await;
    assert!(granted(local).await.token > next.token);
    let grant = store.lock("election:e").unwrap().grant.unwrap();
    assert_eq!(grant.holder.owner.as_str(), "local", "people see who leads");
}

#[tokio::test(start_paused = true)]
async fn grant_seen_before_its_answer_causes_no_join() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    a.lease("other").await;
    settled().await;
    let gate = store.hold(Call::UpdateLock, Half::Answer);
    let one = spawn(&a.agent, request("one", 240));
    let two = spawn(&a.agent, request("two", 240));
    eventually("the grant is written", || gate.arrived() > 0).await;
    settled().await;
    gate.open();
    let lease = granted(one).await;
    let writes = store.writes();
    settled().await;
    release(&a, &lease).await;
    assert_eq!(names(&granted(two).await), next_of(&lease));
    assert_eq!(store.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn handed_over_lock_serves_local_waiters_without_a_write() {
    let (store, a, b) = two_pods();
    let first = a.lease("r").await;
    let line: Vec<_> = ["one", "two", "three"]
        .map(|owner| spawn(&b.agent, request(owner, 240)))
        .into_iter()
        .collect();
    eventually("it stands in the queue", || queue(&b).len() == 1).await;
    settled().await;
    // The event of the granting write comes before the answer of the release.
    release(&a, &first).await;
    settled().await;
    let writes = store.writes();
    let mut before: Option<LeaseView> = None;
    for waiting in line {
        if let Some(before) = &before {
            release(&b, before).await;
        }
        let lease = granted(waiting).await;
        if let Some(before) = &before {
            assert_eq!(names(&lease), next_of(before));
        }
        settled().await;
        assert!(queue(&b).is_empty());
        before = Some(lease);
    }
    assert_eq!(store.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn unneeded_queue_entry_is_released() {
    let (_, a, b) = two_pods();
    let mut lease = a.lease("r").await;
    let local = spawn(&a.agent, request("local", 240));
    let other = queued_waiter(&b, "other", 240).await;
    tokio::time::sleep(OTHERS_WAIT * 2).await;
    assert_eq!(queue(&b), ["other", "local"]);
    other.abort();
    assert!(other.await.is_err());
    eventually("the other has left", || queue(&b) == ["local"]).await;
    settled().await;
    release(&a, &lease).await;
    let next = granted(local).await;
    assert_eq!(names(&next), next_of(&lease), "nobody else waits");
    lease = next;
    eventually("its place is gone", || queue(&a).is_empty()).await;
    assert!(a.agent.renew(&lease.lease, None, a.now()).is_ok());
}
