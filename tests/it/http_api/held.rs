//! What a refusal and the event `waiting` say of a held lock: the same, as of the moment that they leave.

use std::time::Duration;

use serde_json::{Value, json};

use super::events::Stream;
use super::{Answer, Sidecar};
use crate::memory_store::MemoryStore;

/// Waits until a lock has so many queue entries.
async fn until_queued(store: &MemoryStore, count: usize) {
    let queued = async {
        while store.lock("r").unwrap().waiters.len() != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let queued = tokio::time::timeout(super::events::LIMIT, queued).await;
    queued.expect("as many queue entries");
}

fn waiter(pod: &str) -> Value {
    json!({"ownerId": "app", "pod": pod, "queuedAt": "1970-01-01T00:00:00Z"})
}

#[tokio::test]
async fn refusal_and_waiting_event_name_the_same_queue() {
    let store = MemoryStore::default();
    let holder = Sidecar::in_pod("pod-a", &store, |_| {}).await;
    holder.lease("r").await;
    let first = Sidecar::in_pod("pod-b", &store, |_| {}).await;
    let _first = Stream::hold(&first, "r").await;
    until_queued(&store, 1).await;
    let second = Sidecar::in_pod("pod-c", &store, |_| {}).await;
    let mut hold = Stream::hold(&second, "r").await;
    let waiting = hold.next_is("waiting").await;
    until_queued(&store, 2).await;
    let tried = second.acquire("r").await;
    tried.is_problem(
        409,
        "lock_held",
        "This pod is 2nd in the queue, after app in pod pod-b.",
    );
    assert_eq!(tried.body["position"], 2);
    for field in ["holder", "queueLength", "ahead"] {
        assert_eq!(tried.body[field], waiting[field], "{field}");
    }
    assert_eq!(
        (&waiting["ahead"], &waiting["queueLength"]),
        (&json!([waiter("pod-b")]), &json!(1))
    );

    let third = Sidecar::in_pod("pod-d", &store, |_| {}).await;
    let tried = third.without_a_write(third.acquire("r")).await;
    tried.is_problem(
        409,
        "lock_held",
        "In the queue: app in pod pod-b, app in pod pod-c.",
    );
    let command = "`kubectl leasehold why r --namespace team-a`";
    tried.is_problem(409, "lock_held", command);
    assert_eq!(tried.body["queueLength"], 2);
    assert_eq!(
        tried.body["ahead"],
        json!([waiter("pod-b"), waiter("pod-c")])
    );
    assert_eq!(tried.body.get("position"), None);
}

/// Returns how long the holder was silent, and how much of it is left.
fn silence(answer: &Answer) -> (u64, u64) {
    answer.is_problem(
        409,
        "lock_held",
        "if it stays silent, the lock can be taken over",
    );
    let field = |name: &str| answer.body[name].as_u64().unwrap();
    (field("holderSilentForMs"), field("takeOverAfterMs"))
}

#[tokio::test]
async fn refusal_counts_the_silence_of_the_holder() {
    let store = MemoryStore::default();
    let holder = Sidecar::in_pod("pod-a", &store, |_| {}).await;
    holder.lease("r").await;
    let other = Sidecar::in_pod("pod-b", &store, |_| {}).await;
    let fresh = other.acquire("r").await;
    fresh.is_problem(
        409,
        "lock_held",
        ". If the holder stays silent, the lock can be taken over",
    );
    assert_eq!(fresh.body["holderSilentForMs"], 0);
    other.clock.advance(Duration::from_millis(6_000));
    assert_eq!(silence(&other.acquire("r").await), (6_000, 9_750));
}

#[tokio::test]
async fn strict_refusal_points_to_the_operator_alone() {
    let store = MemoryStore::default();
    let holder = Sidecar::in_pod("pod-a", &store, |_| {}).await;
    holder.lease("r").await;
    let other = Sidecar::in_pod("pod-b", &store, |config| config.takes_over = false).await;
    let refused = other.acquire("r").await;
    refused.is_problem(409, "lock_held", "kubectl leasehold why r");
    assert!(
        refused.body["hint"]
            .as_str()
            .unwrap()
            .contains("only the operator")
    );
    let mut hold = Stream::hold(&other, "r").await;
    let waiting = hold.next_is("waiting").await;
    for document in [&refused.body, &waiting] {
        assert_eq!(document.get("holderSilentForMs"), None);
        assert_eq!(document.get("takeOverAfterMs"), None);
    }
}

#[tokio::test]
async fn lock_of_the_own_pod_is_refused_without_a_session() {
    let sidecar = Sidecar::start().await;
    sidecar.lease("r").await;
    let refused = sidecar.without_a_write(sidecar.acquire("r")).await;
    refused.is_problem(409, "lock_held", "pod pod-a has held the lock since");
    assert_eq!(refused.body.get("holderSilentForMs"), None);
    assert_eq!(refused.body["ahead"], json!([]));
    assert!(
        refused.body["hint"]
            .as_str()
            .unwrap()
            .contains("not reentrant")
    );
}
