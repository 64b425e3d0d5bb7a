//! Two hundred agents that ask for one lock within a second. In paused time the API server is never busy, so the
//! requests are the protocol's own; `make crowd` shows what a real API server adds.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::try_join_all;
use leasehold::agent::{Acquired, Released};

use super::{Pod, request};
use crate::memory_store::{Call, MemoryStore};
use crate::seed::seed;

const AGENTS: usize = 200;
const WITHIN: Duration = Duration::from_millis(900);
const HELD_FOR: Duration = Duration::from_millis(10);
/// A waiter renews its session and reads the lock so often: a third of the default TTL.
const READS_EVERY: Duration = Duration::from_secs(5);
const REQUESTS_EACH: u128 = 8;
/// What waiting costs is not counted, so it has a limit.
const LONGEST: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn crowd_costs_at_most_eight_requests_each() {
    for round_trip in [4, 50].map(Duration::from_millis) {
        let store = MemoryStore::default();
        let pods: Vec<Pod> = (0..AGENTS)
            .map(|number| Pod::in_paused_time(&format!("p{number}"), &store))
            .collect();
        store.slow_down(round_trip);
        let calls = store.record_calls();
        let mut random = fastrand::Rng::with_seed(seed());
        let visits = pods
            .iter()
            .map(|pod| visit(pod, WITHIN.mul_f64(random.f64())));
        let waited: Vec<Duration> = try_join_all(visits).await.expect("all are served");

        let lock = store.lock("r").expect("the lock");
        assert!(lock.grant.is_none() && lock.waiters.is_empty(), "{lock:?}");
        assert_eq!(lock.transitions, AGENTS as u64);
        let longest = waited.iter().max().expect("there are agents");
        assert!(*longest < LONGEST, "{longest:?} over {round_trip:?}");
        let reads = waited
            .iter()
            .map(|waited| waited.as_millis() / READS_EVERY.as_millis());
        let by_waiting = 2 * reads.sum::<u128>();
        let counts = counted(&calls.lock().unwrap());
        let others = (counts.values().sum::<usize>() as u128).saturating_sub(by_waiting);
        assert!(
            others <= REQUESTS_EACH * AGENTS as u128,
            "{others} requests over {round_trip:?}, and {by_waiting} by waiting: {counts:?}"
        );
    }
}

/// Waits for the lock, holds it for a moment and releases it. Returns how long it waited.
async fn visit(pod: &Pod, after: Duration) -> Result<Duration, String> {
    tokio::time::sleep(after).await;
    let since = pod.now();
    let lease = match pod.agent.acquire(request("app", 240), since).await {
        Ok(Acquired::Granted { lease, .. }) => lease,
        other => return Err(format!("not granted: {other:?}")),
    };
    let waited = pod.now().since(since);
    tokio::time::sleep(HELD_FOR).await;
    match pod.agent.release(&lease.lease).await {
        Ok(Released::Done) => Ok(waited),
        other => Err(format!("not released: {other:?}")),
    }
}

fn counted(calls: &[Call]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for call in calls {
        *counts.entry(format!("{call:?}")).or_default() += 1;
    }
    counts
}
