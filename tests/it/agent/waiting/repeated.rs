//! Requests with a `requestId` that are repeated while they wait: queue entry and grant are kept for a while, and two
//! calls of one request share them.

use std::time::Duration;

use leasehold::agent::{AcquireError, AcquireRequest, Acquired, Life};

use super::{granted, holder, queue, release, request, spawn, two_pods};
use crate::agent::eventually;
use crate::memory_store::{Call, Half};

#[tokio::test(start_paused = true)]
async fn queue_entry_is_kept_for_a_repeated_request() {
    for repeated_after in [1, 9, 12] {
        let (_, a, b) = two_pods();
        let lease = a.lease("r").await;
        let named = AcquireRequest {
            request_id: Some("id-1".into()),
            ..request("b", 240)
        };
        let hung_up = spawn(&b.agent, named.clone());
        eventually("it waits", || queue(&b) == ["b"]).await;
        hung_up.abort();
        assert!(hung_up.await.is_err());
        tokio::time::sleep(Duration::from_secs(repeated_after)).await;
        let is_kept = repeated_after < 10;
        assert_eq!(queue(&b).is_empty(), !is_kept, "after {repeated_after} s");
        let repeated = spawn(&b.agent, named);
        tokio::task::yield_now().await;
        eventually("it waits", || queue(&b) == ["b"]).await;
        release(&a, &lease).await;
        granted(repeated).await;
    }
}

#[tokio::test(start_paused = true)]
async fn grant_between_two_tries_is_kept_for_the_second() {
    let (store, a, b) = two_pods();
    let lease = a.lease("r").await;
    let named = AcquireRequest {
        request_id: Some("id-1".into()),
        ..request("b", 240)
    };
    let hung_up = spawn(&b.agent, named.clone());
    eventually("it waits", || queue(&b) == ["b"]).await;
    hung_up.abort();
    assert!(hung_up.await.is_err());
    release(&a, &lease).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(holder(&b).as_deref(), Some("b"));
    let writes = store.writes();
    let lease = granted(spawn(&b.agent, named)).await;
    assert_eq!(store.writes(), writes);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(
        b.agent.lease(&lease.lease, b.now()).is_ok(),
        "somebody believes in it"
    );
}

#[tokio::test(start_paused = true)]
async fn the_same_request_twice_at_once_waits_once_and_gets_one_lease() {
    let (_, a, b) = two_pods();
    let lease = a.lease("r").await;
    let named = |wait| AcquireRequest {
        request_id: Some("id-1".into()),
        ..request("b", wait)
    };
    let first = spawn(&b.agent, named(240));
    eventually("it waits", || queue(&b) == ["b"]).await;
    let second = spawn(&b.agent, named(200));
    let impatient = spawn(&b.agent, named(20));
    let told = impatient.await.unwrap();
    assert!(matches!(told, Ok(Acquired::Held { .. })), "{told:?}");
    a.agent.renew(&lease.lease, None, a.now()).unwrap();
    release(&a, &lease).await;
    assert_eq!(granted(first).await.lease, granted(second).await.lease);
    let other = AcquireRequest {
        life: Life::Ttl(Duration::from_secs(1)),
        ..named(10)
    };
    let reused = spawn(&b.agent, other).await.unwrap();
    assert_eq!(reused, Err(AcquireError::RequestIdReused));
}

#[tokio::test(start_paused = true)]
async fn repeated_request_takes_over_the_entry_after_a_hang_up() {
    let (_, a, b) = two_pods();
    let lease = a.lease("r").await;
    let named = AcquireRequest {
        request_id: Some("id-1".into()),
        ..request("b", 240)
    };
    let first = spawn(&b.agent, named.clone());
    eventually("it waits", || queue(&b) == ["b"]).await;
    let second = spawn(&b.agent, named);
    tokio::task::yield_now().await;
    first.abort();
    assert!(first.await.is_err());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(queue(&b), ["b"], "somebody is there again");
    a.agent.renew(&lease.lease, None, a.now()).unwrap();
    release(&a, &lease).await;
    granted(second).await;
}

#[tokio::test(start_paused = true)]
async fn validity_of_a_repeated_request_counts_from_itself() {
    let (store, a, b) = two_pods();
    let lease = a.lease("r").await;
    let named = AcquireRequest {
        request_id: Some("id-1".into()),
        ..request("b", 240)
    };
    let first = spawn(&b.agent, named.clone());
    eventually("it waits", || queue(&b) == ["b"]).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    a.agent.renew(&lease.lease, None, a.now()).unwrap();
    // The line is just reading that the lock is its own when the first call goes away.
    let _stalled = store.stall_watches();
    let gate = store.hold(Call::GetLock, Half::Answer);
    release(&a, &lease).await;
    eventually("the line reads", || gate.arrived() > 0).await;
    first.abort();
    assert!(first.await.is_err());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = spawn(&b.agent, named);
    tokio::task::yield_now().await;
    gate.open();
    let lease = granted(second).await;
    assert!(
        lease.valid_for <= Duration::from_millis(14_250),
        "{lease:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn try_of_a_waiting_request_makes_no_second_claim() {
    let (store, a, b) = two_pods();
    let lease = a.lease("r").await;
    let named = |wait| AcquireRequest {
        request_id: Some("id-1".into()),
        ..request("b", wait)
    };
    let waiting = spawn(&b.agent, named(240));
    eventually("it waits", || queue(&b) == ["b"]).await;
    let calls = store.calls();
    let tried = spawn(&b.agent, named(0)).await.unwrap();
    assert!(matches!(tried, Ok(Acquired::Held { .. })), "{tried:?}");
    assert_eq!(store.calls(), calls);
    release(&a, &lease).await;
    let lease = granted(waiting).await;
    let tried = spawn(&b.agent, named(0)).await.unwrap();
    let is_replayed = matches!(&tried, Ok(Acquired::Granted { lease: same, replayed: true })
        if same.lease == lease.lease);
    assert!(is_replayed, "{tried:?}");
}

#[tokio::test(start_paused = true)]
async fn timed_out_request_keeps_no_queue_entry() {
    let (_, a, b) = two_pods();
    let lease = a.lease("r").await;
    let named = AcquireRequest {
        request_id: Some("id-1".into()),
        ..request("b", 10)
    };
    let told = spawn(&b.agent, named).await.unwrap();
    assert!(matches!(told, Ok(Acquired::Held { .. })), "{told:?}");
    eventually("nothing is kept for it", || queue(&b).is_empty()).await;
    release(&a, &lease).await;
    assert!(b.is_free("r"));
}
