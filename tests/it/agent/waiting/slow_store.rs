//! A distant API server: the duration of a call is no sign of contention.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::agent::{AcquireRequest, Acquired, LeaseEvent, Life};
use leasehold::protocol::ids::{OwnerId, Resource};

use super::{Pod, request};
use crate::memory_store::{Call, MemoryStore};

/// How an app asks for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Try,
    Wait,
    Hold,
}

/// What getting the lock took: the calls in their order, and the time.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    calls: Vec<Call>,
    time: Duration,
}

/// The calls for a free lock, from an API server at this distance.
async fn cost(how: How, latency: Duration, is_new: bool) -> Cost {
    let store = MemoryStore::default();
    if !is_new {
        store.make_lock("r");
    }
    let pod = Pod::in_paused_time("a", &store);
    store.slow_down(latency);
    let calls = store.record_calls();
    let since = pod.now();
    match how {
        How::Try => drop(pod.lease("r").await),
        How::Wait => {
            let acquired = pod.agent.acquire(request("a", 20), since).await;
            assert!(
                matches!(acquired, Ok(Acquired::Granted { .. })),
                "{acquired:?}"
            );
        }
        How::Hold => {
            let mut hold = pod.agent.hold(held_request(), since).await.unwrap();
            loop {
                match hold.next().await {
                    Some(LeaseEvent::Acquired(_)) => break,
                    Some(LeaseEvent::Waiting { .. }) => {}
                    other => panic!("not acquired: {other:?}"),
                }
            }
        }
    }
    let time = pod.now().since(since);
    // The watch of the new session is opened beside, at any time.
    let mut calls = calls.lock().unwrap().clone();
    calls.retain(|call| *call != Call::WatchLocks);
    Cost { calls, time }
}

fn held_request() -> AcquireRequest {
    AcquireRequest {
        resource: Resource::parse("r").unwrap(),
        owner: OwnerId::from("a"),
        life: Life::Connection {
            max_hold: Duration::from_hours(1),
        },
        wait: Duration::MAX,
        keep: Duration::ZERO,
        metadata: BTreeMap::new(),
        preferred: false,
        request_id: None,
    }
}

#[tokio::test(start_paused = true)]
async fn free_lock_costs_a_waiter_what_it_costs_a_try() {
    for latency in [20, 100, 300].map(Duration::from_millis) {
        for is_new in [true, false] {
            let tried = cost(How::Try, latency, is_new).await;
            assert!(!tried.calls.is_empty());
            for how in [How::Wait, How::Hold] {
                let waited = cost(how, latency, is_new).await;
                assert_eq!(waited, tried, "{how:?}, {latency:?} each, new: {is_new}");
            }
        }
    }
}
