//! Holds that try once or wait for a limited time.

use std::time::Duration;

use leasehold::agent::{AcquireRequest, Hold, HoldError, LeaseEvent, Life};

use super::super::{Pod, eventually};
use super::{queue, queued_waiter, release, request, settled, two_pods};

/// A hold that waits for so many seconds.
async fn hold(pod: &Pod, wait: u64) -> Result<Hold, HoldError> {
    pod.agent.hold(held_request(wait), pod.now()).await
}

fn held_request(wait: u64) -> AcquireRequest {
    AcquireRequest {
        life: Life::Connection {
            max_hold: Duration::from_hours(1),
        },
        ..request("hold", wait)
    }
}

/// Asserts that the lock was held by the other pod, and returns the number of waiters.
#[track_caller]
fn assert_held(error: &HoldError, seconds: u64) -> usize {
    let HoldError::Held { held, wait, .. } = error else {
        panic!("the lock was not held: {error:?}");
    };
    assert_eq!(held.holder.owner.as_str(), "app");
    assert_eq!(*wait, Duration::from_secs(seconds));
    held.queue_length
}

#[tokio::test(start_paused = true)]
async fn tried_hold_is_refused_without_a_queue_entry() {
    let (store, a, b) = two_pods();
    a.lease("r").await;
    let writes = store.writes();
    let refused = hold(&b, 0).await.err().unwrap();
    assert_eq!(assert_held(&refused, 0), 0);
    settled().await;
    assert!(queue(&b).is_empty());
    assert_eq!(store.writes(), writes, "no session and no queue entry");
}

#[tokio::test(start_paused = true)]
async fn tried_hold_is_refused_while_its_pod_waits() {
    let (_, a, b) = two_pods();
    a.lease("r").await;
    let _waiting = queued_waiter(&b, "other", 240).await;
    let refused = hold(&b, 0).await.err().unwrap();
    assert_held(&refused, 0);
    assert_eq!(queue(&b), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn tried_hold_gets_a_free_lock() {
    let (_, _, b) = two_pods();
    let mut held = hold(&b, 0).await.unwrap();
    assert!(matches!(held.next().await, Some(LeaseEvent::Acquired(_))));
    drop(held);
    eventually("the lock is free", || b.is_free("r")).await;
}

#[tokio::test(start_paused = true)]
async fn hold_whose_wait_is_over_ends_and_leaves_the_queue() {
    let (_, a, b) = two_pods();
    a.lease("r").await;
    let since = b.now();
    let mut waiting = hold(&b, 30).await.unwrap();
    let mut events = 0;
    let failed = loop {
        match waiting.next().await {
            Some(LeaseEvent::Waiting { .. }) => events += 1,
            Some(LeaseEvent::Failed(error)) => break error,
            other => panic!("neither waiting nor failed: {other:?}"),
        }
    };
    assert!(events > 1, "{events}");
    assert_eq!(assert_held(&failed, 30), 0);
    assert_eq!(b.now().since(since), Duration::from_secs(30));
    assert_eq!(waiting.next().await, None);
    eventually("it left the queue", || queue(&b).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn hold_with_a_limited_wait_gets_the_lock_after_release() {
    let (_, a, b) = two_pods();
    let first = a.lease("r").await;
    let mut waiting = hold(&b, 30).await.unwrap();
    let event = waiting.next().await;
    assert!(
        matches!(event, Some(LeaseEvent::Waiting { .. })),
        "{event:?}"
    );
    eventually("it has a queue entry", || queue(&b) == ["hold"]).await;
    release(&a, &first).await;
    let event = waiting.next().await;
    assert!(
        matches!(&event, Some(LeaseEvent::Acquired(lease)) if lease.token > first.token),
        "{event:?}"
    );
    // The limit is for the wait only.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let event = waiting.next().await;
    assert!(matches!(event, Some(LeaseEvent::Heartbeat(_))), "{event:?}");
}

/// As when the request was read slowly.
#[tokio::test(start_paused = true)]
async fn hold_whose_wait_is_over_on_arrival_begins_no_stream() {
    let (_, a, b) = two_pods();
    a.lease("r").await;
    let _waiting = queued_waiter(&b, "other", 240).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let arrived = b.now().before(Duration::from_secs(10));
    let refused = b.agent.hold(held_request(5), arrived).await.err().unwrap();
    assert_held(&refused, 5);
    assert_eq!(queue(&b), ["other"]);
}
