//! Completed work: recorded while the lease is held, and shown to each later holder.

use leasehold::store::StoreError;
use serde_json::json;

use super::{Answer, Sidecar};
use crate::memory_store::{Call, MemoryStore};

async fn complete(sidecar: &Sidecar, lease: &str, key: &str) -> Answer {
    let path = format!("{lease}/complete");
    sidecar.post(&path, json!({"key": key})).await
}

fn keys(sidecar: &Sidecar) -> Vec<String> {
    let lock = sidecar.store.lock("r").unwrap();
    let entries = lock.completed.entries().iter();
    entries.map(|entry| entry.key.to_string()).collect()
}

#[tokio::test]
async fn completed_key_is_in_the_answers_to_later_holders() {
    let store = MemoryStore::default();
    let first = Sidecar::in_pod("pod-a", &store, |_| {}).await;
    let second = Sidecar::in_pod("pod-b", &store, |_| {}).await;
    let acquired = first.acquire("r").await;
    let lease = format!("/v1/locks/{}", acquired.body["leaseId"].as_str().unwrap());
    assert_eq!(complete(&first, &lease, "2026-04-01").await.status, 204);
    let again = first.without_a_write(complete(&first, &lease, "2026-04-01"));
    assert_eq!(again.await.status, 204);
    assert_eq!(complete(&first, &lease, "b").await.status, 204);
    let lock = store.lock("r").unwrap();
    let token = acquired.body["fencingToken"].as_u64();
    let recorded = &lock.completed.entries()[0];
    assert_eq!(Some(recorded.token.get()), token);
    assert_eq!(recorded.owner.as_str(), "pod-a");
    assert_eq!(first.delete(&lease).await.status, 204);

    let later = second.acquire("r").await;
    assert_eq!(later.body["completed"], json!(["2026-04-01", "b"]));
}

#[tokio::test]
async fn waiter_gets_the_key_with_the_hand_over() {
    let store = MemoryStore::default();
    let first = Sidecar::in_pod("pod-a", &store, |_| {}).await;
    let second = Sidecar::in_pod("pod-b", &store, |_| {}).await;
    let lease = first.lease("r").await;
    let body = json!({"resource": "r", "ttlSeconds": 30, "waitSeconds": 60});
    let waiting = second.post("/v1/locks/acquire", body);
    let working = async {
        while store.lock("r").unwrap().waiters.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        assert_eq!(complete(&first, &lease, "k").await.status, 204);
        assert_eq!(first.delete(&lease).await.status, 204);
    };
    let (waited, ()) = tokio::join!(waiting, working);
    assert_eq!(waited.body["completed"], json!(["k"]), "{waited:?}");
}

/// The next lease needs no write, so it is shown what this agent knows.
#[tokio::test]
async fn next_lease_of_a_kept_grant_shows_the_key() {
    let sidecar = Sidecar::start().await;
    let body = json!({"resource": "r", "ttlSeconds": 30, "keepSeconds": 60});
    let acquired = sidecar.post("/v1/locks/acquire", body.clone()).await;
    assert_eq!(acquired.body["completed"], json!([]));
    let lease = format!("/v1/locks/{}", acquired.body["leaseId"].as_str().unwrap());
    assert_eq!(complete(&sidecar, &lease, "k").await.status, 204);
    assert_eq!(sidecar.delete(&lease).await.status, 204);
    let next = sidecar.post("/v1/locks/acquire", body);
    let next = sidecar.without_a_write(next).await;
    assert_eq!(next.body["completed"], json!(["k"]));
}

#[tokio::test]
async fn other_writes_of_the_lock_do_not_prevent_the_record() {
    let sidecar = Sidecar::start().await;
    let lease = sidecar.lease("r").await;
    let mut conflicts = 3;
    sidecar.store.on_call(move |call| {
        if call != Call::UpdateLock || conflicts == 0 {
            return None;
        }
        conflicts -= 1;
        Some(StoreError::Conflict)
    });
    assert_eq!(complete(&sidecar, &lease, "k").await.status, 204);
    assert_eq!(keys(&sidecar), ["k"]);
}

#[tokio::test]
async fn record_without_an_answer_is_unknown_and_repeated() {
    let sidecar = Sidecar::start().await;
    let lease = sidecar.lease("r").await;
    sidecar.store.lose_answer(Call::UpdateLock);
    let unknown = complete(&sidecar, &lease, "k").await;
    unknown.is_problem(503, "store_unavailable", "the key may not be recorded");
    sidecar.store.heal();
    assert_eq!(keys(&sidecar), ["k"]);
    assert_eq!(complete(&sidecar, &lease, "k").await.status, 204);
    assert_eq!(keys(&sidecar), ["k"]);
}

#[tokio::test]
async fn work_of_a_lease_that_is_over_is_not_recorded() {
    let sidecar = Sidecar::start().await;
    let unknown = complete(&sidecar, "/v1/locks/x.0", "k").await;
    unknown.is_problem(404, "lease_unknown", "lease not found");

    let released = sidecar.lease("r").await;
    assert_eq!(sidecar.delete(&released).await.status, 204);
    let late = complete(&sidecar, &released, "k").await;
    late.is_problem(410, "lease_lost", "released");

    let taken = sidecar.lease("r").await;
    sidecar.store.edit_lock("r", |lock| lock.grant = None);
    let late = complete(&sidecar, &taken, "k").await;
    late.is_problem(410, "lease_lost", "taken over, deleted or edited");
    assert_eq!(keys(&sidecar), [""; 0]);
}

#[tokio::test]
async fn invalid_key_is_refused_without_a_write() {
    let sidecar = Sidecar::start().await;
    let lease = sidecar.lease("r").await;
    for key in ["", " ", "a\n", "ä", &"x".repeat(129)] {
        let refused = sidecar.without_a_write(complete(&sidecar, &lease, key));
        let refused = refused.await;
        refused.is_problem(
            400,
            "invalid_request",
            "1 to 128 printable ASCII characters",
        );
    }
}

#[tokio::test]
async fn many_conflicts_are_an_error_and_no_record() {
    let sidecar = Sidecar::start().await;
    let lease = sidecar.lease("r").await;
    let busy = |call| (call == Call::UpdateLock).then_some(StoreError::Conflict);
    sidecar.store.on_call(busy);
    let refused = complete(&sidecar, &lease, "k").await;
    refused.is_problem(503, "store_unavailable", "the key may not be recorded");
    assert_eq!(keys(&sidecar), [""; 0]);
}
