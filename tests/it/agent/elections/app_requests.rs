//! A lead that needs an app: the agent runs from the first question on, and no longer than its app asks.

use std::task::Poll;
use std::time::Duration;

use leasehold::agent::Campaign;

use super::super::{Pod, eventually};
use super::{RESOURCE, name};
use crate::memory_store::MemoryStore;

const TTL: Duration = Duration::from_secs(15);
/// For how long a question counts.
const COUNTS: Duration = Duration::from_secs(30);
/// What a hand-over takes in a test, and a timer's step.
const SLACK: Duration = Duration::from_secs(1);

impl Pod {
    fn run_while_asked(&self) {
        self.agent.run_for_while_asked(Campaign {
            election: name("e"),
            preferred: false,
        });
    }
}

/// A pod that leads because its app asks, and one that waits for the lead, asked or not.
async fn leader_and_next(store: &MemoryStore) -> (Pod, Pod) {
    let [a, b] = ["a", "b"].map(|name| Pod::in_paused_time(name, store));
    a.run_while_asked();
    a.until_leader().await;
    b.run();
    until_waiting(store, 1).await;
    a.view().await;
    (a, b)
}

async fn until_waiting(store: &MemoryStore, count: usize) {
    let is_it = || store.lock(RESOURCE).unwrap().waiters.len() == count;
    eventually("they wait", is_it).await;
}

fn leads(store: &MemoryStore, pod: &Pod) -> bool {
    let lock = store.lock(RESOURCE);
    let grant = lock.and_then(|lock| lock.grant);
    grant.is_some_and(|grant| grant.holder.pod.uid == pod.agent.pod().uid)
}

#[tokio::test(start_paused = true)]
async fn candidate_runs_only_after_its_app_asked() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    pod.run_while_asked();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(store.lock(RESOURCE).is_none());
    let asked = pod.now();
    pod.until_leader().await;
    assert!(pod.now().since(asked) < SLACK);
}

#[tokio::test(start_paused = true)]
async fn lead_without_app_requests_is_handed_on_after_two_ttls() {
    let store = MemoryStore::default();
    let (a, b) = leader_and_next(&store).await;
    tokio::time::sleep(TTL + TTL * 9 / 10).await;
    assert!(leads(&store, &a), "a question counts for so long");
    tokio::time::sleep(TTL / 10 + SLACK).await;
    assert!(leads(&store, &b));
    let lock = store.lock(RESOURCE).unwrap();
    assert!(lock.waiters.is_empty(), "it does not wait for it either");
    assert_eq!(lock.incidents, [], "it was given up");
    a.view().await;
    until_waiting(&store, 1).await;
}

#[tokio::test(start_paused = true)]
async fn queue_entry_without_app_requests_is_released_too() {
    let store = MemoryStore::default();
    let [a, b] = ["a", "b"].map(|name| Pod::in_paused_time(name, &store));
    a.run();
    a.until_leader().await;
    b.run_while_asked();
    b.view().await;
    until_waiting(&store, 1).await;
    tokio::time::sleep(COUNTS + SLACK).await;
    until_waiting(&store, 0).await;
}

#[tokio::test(start_paused = true)]
async fn leader_keeps_its_lead_while_its_app_asks() {
    let store = MemoryStore::default();
    let (a, _b) = leader_and_next(&store).await;
    let token = a.view().await.token;
    for _ in 0..100 {
        tokio::time::sleep(TTL * 9 / 10).await;
        assert_eq!(a.view().await.token, token);
        assert!(a.leads_until().await.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn open_event_stream_counts_as_asking() {
    let store = MemoryStore::default();
    let (a, b) = leader_and_next(&store).await;
    let mut events = a.election_events().await;
    let closed_at = a.now().after(TTL * 20);
    while a.now() < closed_at {
        assert!(events.next().await.unwrap().view.lead.is_some());
    }
    drop(events);
    tokio::time::sleep(COUNTS + SLACK).await;
    assert!(leads(&store, &b));
}

/// An app that has the lease's id may keep to that.
#[tokio::test(start_paused = true)]
async fn request_about_the_lease_counts_as_asking() {
    let store = MemoryStore::default();
    let (a, b) = leader_and_next(&store).await;
    let lease = a.view().await.lead.unwrap().lease;
    for _ in 0..100 {
        tokio::time::sleep(TTL * 9 / 10).await;
        a.agent.lease(&lease, a.now()).unwrap();
    }
    assert!(leads(&store, &a));
    tokio::time::sleep(COUNTS + SLACK).await;
    assert!(leads(&store, &b));
}

/// A validity that is returned at that moment holds: the question comes between any two steps of the tasks.
#[tokio::test(start_paused = true)]
async fn validity_returned_as_a_lead_is_released_still_holds() {
    let (mut believed, mut refused) = (0, 0);
    for steps in 0..20 {
        let store = MemoryStore::default();
        let (a, b) = leader_and_next(&store).await;
        let lease = a.view().await.lead.unwrap().lease;
        let (agent, id, asked) = (a.agent.clone(), lease.clone(), a.now().after(COUNTS));
        let told = tokio::spawn(async move {
            tokio::time::sleep(COUNTS).await;
            for _ in 0..steps {
                step().await;
            }
            agent.lease(&id, asked)
        });
        let Ok(told) = told.await.unwrap() else {
            refused += 1;
            eventually("it is the next one's", || leads(&store, &b)).await;
            continue;
        };
        believed += 1;
        tokio::time::sleep(told.valid_for * 99 / 100).await;
        assert!(leads(&store, &a), "told after {steps} steps");
    }
    assert!(believed > 0 && refused > 0, "{believed} {refused}");
}

/// Lets every task that is ready run once. tokio's own way lets them run until none is.
async fn step() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
