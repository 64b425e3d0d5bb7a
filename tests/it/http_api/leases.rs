//! The lifecycle of a lease: acquired, renewed, read, listed, verified, released, lost.

use std::time::Duration;

use leasehold::agent::OnTerm;
use leasehold::store::StoreError;
use reqwest::Method;
use serde_json::json;

use super::{Sidecar, VERIFY_BATCH, send};
use crate::memory_store::{Call, MemoryStore};

#[tokio::test]
async fn acquire_returns_exactly_the_documented_fields() {
    let sidecar = Sidecar::start().await;
    let body = json!({"resource": "r", "ttlSeconds": 10, "waitSeconds": 0,
        "metadata": {"job": "close"}});
    let acquired = sidecar.post("/v1/locks/acquire", body).await;
    assert_eq!(acquired.status, 200);
    let names: Vec<_> = acquired
        .body
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let promised = [
        "acquired",
        "completed",
        "expiresAt",
        "fencingToken",
        "leaseId",
        "ownerId",
        "renewAfterMs",
        "replayed",
        "resource",
        "validForMs",
    ];
    assert_eq!(names, promised);
    assert_eq!(acquired.body["acquired"], true);
    assert_eq!(acquired.body["replayed"], false);
    assert_eq!(
        acquired.body["ownerId"], "pod-a",
        "the pod's name unless the app says who it is"
    );
    assert_eq!(acquired.body["validForMs"], 10_000);
    assert_eq!(acquired.body["expiresAt"], "1970-01-01T00:00:10Z");
    let token = acquired.body["fencingToken"].as_u64().unwrap();
    assert_eq!(acquired.headers["x-fencing-token"], token.to_string());
    assert_eq!(sidecar.store.lock("r").unwrap().token.get(), token);
}

#[tokio::test]
async fn a_held_lock_is_refused_by_its_holders_name() {
    let store = MemoryStore::default();
    let first = Sidecar::in_pod("pod-a", &store, |_| {}).await;
    let second = Sidecar::in_pod("pod-b", &store, |_| {}).await;
    second.lease("warm-up").await;
    let body = json!({"resource": "r", "ttlSeconds": 30, "ownerId": "worker-3",
        "metadata": {"job": "close"}});
    let held = first.post("/v1/locks/acquire", body).await;
    let refused = second.without_a_write(second.acquire("r")).await;
    refused.is_problem(409, "lock_held", "worker-3 in pod pod-a");
    assert_eq!(refused.body["acquired"], false);
    assert_eq!(refused.body["queueLength"], 0);
    let holder = json!({"ownerId": "worker-3", "pod": "pod-a", "metadata": {"job": "close"},
        "fencingToken": held.body["fencingToken"], "heldSince": "1970-01-01T00:00:00Z"});
    assert_eq!(refused.body["holder"], holder);
    // Locks are not reentrant.
    let again = first.without_a_write(first.acquire("r")).await;
    again.is_problem(409, "lock_held", "pod pod-a");
}

#[tokio::test]
async fn a_released_lock_moves_with_a_larger_token() {
    let store = MemoryStore::default();
    let first = Sidecar::in_pod("pod-a", &store, |_| {}).await;
    let second = Sidecar::in_pod("pod-b", &store, |_| {}).await;
    let held = first.acquire("r").await;
    let path = format!("/v1/locks/{}", held.body["leaseId"].as_str().unwrap());
    assert_eq!(first.delete(&path).await.status, 204);
    let moved = second.acquire("r").await;
    let (old, new) = (&held.body["fencingToken"], &moved.body["fencingToken"]);
    assert!(old.as_u64() < new.as_u64(), "{old} {new}");
    let (old, new) = (old.as_u64().unwrap(), new.as_u64().unwrap());
    let current = second.verify("r", new).await;
    assert_eq!(current.body, json!({"current": true, "exact": true}));
    let seen_from_afar = first.verify("r", new).await;
    assert_eq!(
        seen_from_afar.body,
        json!({"current": true, "exact": false})
    );
    let stale = first.without_a_write(first.verify("r", old)).await;
    stale.is_problem(409, "stale_token", "reject the write");
    assert_eq!(stale.body["current"], false);
    assert_eq!(stale.body["latestFencingToken"], new);
    let unknown = first.without_a_write(first.verify("r", new + 5_000)).await;
    unknown.is_problem(409, "unknown_token", "was not granted for this resource");
    let no_lock = first.without_a_write(first.verify("never", 1)).await;
    no_lock.is_problem(409, "unknown_token", "was not granted for this resource");
    let token = |resource, token| json!({"resource": resource, "fencingToken": token});
    let tokens = json!([token("r", old), token("never", 1), token("r", new)]);
    let batch = second.post(VERIFY_BATCH, json!({ "tokens": tokens }));
    let batch = second.without_a_write(batch).await;
    let expected = json!([
        {"resource": "r", "fencingToken": old, "current": false, "code": "stale_token",
         "latestFencingToken": new},
        {"resource": "never", "fencingToken": 1, "current": false, "code": "unknown_token",
         "latestFencingToken": 0},
        {"resource": "r", "fencingToken": new, "current": true, "exact": true},
    ]);
    assert_eq!((batch.status, &batch.body["results"]), (200, &expected));
}

#[tokio::test]
async fn a_renewal_is_local_and_may_change_the_ttl() {
    let sidecar = Sidecar::start().await;
    let path = sidecar.lease("r").await;
    let renew = format!("{path}/renew");
    // An empty body needs no content type.
    let renewed = sidecar
        .without_a_write(send(sidecar.request(Method::POST, &renew)))
        .await;
    assert_eq!(renewed.status, 200, "{renewed:?}");
    assert_eq!(renewed.body["leaseId"], path.rsplit('/').next().unwrap());
    assert!(renewed.headers.contains_key("x-fencing-token"));
    assert!(renewed.body.get("acquired").is_none());
    let shorter = sidecar.post(&renew, json!({"ttlSeconds": 5})).await;
    assert_eq!(shorter.body["validForMs"], 5_000);
    let read = sidecar.without_a_write(sidecar.get(&path)).await;
    assert_eq!(read.body["validForMs"], 5_000);
    let wrong = sidecar
        .without_a_write(sidecar.post(&renew, json!({"ttlSeconds": 0})))
        .await;
    wrong.is_problem(400, "ttl_out_of_range", "ttlSeconds is 0");
}

#[tokio::test]
async fn the_same_request_gets_the_same_lease() {
    let sidecar = Sidecar::start().await;
    let body = json!({"resource": "r", "ttlSeconds": 30, "requestId": "one"});
    let first = sidecar.post("/v1/locks/acquire", body.clone()).await;
    let again = sidecar
        .without_a_write(sidecar.post("/v1/locks/acquire", body))
        .await;
    assert_eq!(again.status, 200);
    assert_eq!(again.body["replayed"], true);
    assert_eq!(again.body["leaseId"], first.body["leaseId"]);
    assert_eq!(again.body["fencingToken"], first.body["fencingToken"]);
    let other = json!({"resource": "r", "ttlSeconds": 31, "requestId": "one"});
    let other = sidecar
        .without_a_write(sidecar.post("/v1/locks/acquire", other))
        .await;
    other.is_problem(422, "request_id_reused", "new requestId");
}

#[tokio::test]
async fn late_repetition_of_an_ended_request_acquires_nothing() {
    let sidecar = Sidecar::start().await;
    let body = |id: &str, ttl: u64| json!({"resource": "r", "ttlSeconds": ttl, "requestId": id});
    let acquire = async |id, ttl| sidecar.post("/v1/locks/acquire", body(id, ttl)).await;
    let first = acquire("one", 30).await;
    let lease = first.body["leaseId"].as_str().unwrap();
    let path = format!("/v1/locks/{lease}");
    assert_eq!(sidecar.delete(&path).await.status, 204);
    // Whatever its body, the request is over.
    for ttl in [30, 31] {
        let late = sidecar.without_a_write(acquire("one", ttl)).await;
        late.is_problem(410, "lease_lost", "use a new requestId");
        assert!(late.body["detail"].as_str().unwrap().contains(lease));
        assert_eq!(late.body["leaseId"], lease);
        assert_eq!(late.body["reason"], "released");
    }
    assert!(sidecar.store.lock("r").unwrap().grant.is_none());

    // A request whose lease was lost is over, too, and a new request gets the lock.
    let second = acquire("two", 5).await;
    assert_eq!(second.body["replayed"], false);
    sidecar.clock.advance(Duration::from_secs(6));
    let late = acquire("two", 5).await;
    late.is_problem(410, "lease_lost", "use a new requestId");
    assert_eq!(late.body["reason"], "app_silent");

    // Ended leases are remembered for 10 minutes, and so are their request ids.
    sidecar.clock.advance(Duration::from_secs(588));
    assert_eq!(acquire("one", 30).await.status, 410);
    sidecar.clock.advance(Duration::from_secs(6));
    let anew = acquire("one", 30).await;
    assert_eq!(anew.status, 200, "{anew:?}");
    assert_eq!(anew.body["replayed"], false);
}

#[tokio::test]
async fn releasing_twice_succeeds_and_the_lease_stays_released() {
    let sidecar = Sidecar::start().await;
    let path = sidecar.lease("r").await;
    assert_eq!(sidecar.delete(&path).await.status, 204);
    assert!(sidecar.store.lock("r").unwrap().grant.is_none());
    assert_eq!(
        sidecar.without_a_write(sidecar.delete(&path)).await.status,
        204
    );
    for answer in [
        sidecar.get(&path).await,
        sidecar.post(&format!("{path}/renew"), json!({})).await,
    ] {
        answer.is_problem(410, "lease_lost", "released by its app");
        assert_eq!(answer.body["reason"], "released");
    }
}

#[tokio::test]
async fn release_during_an_outage_is_pending_and_completes_later() {
    let sidecar = Sidecar::start().await;
    let path = sidecar.lease("r").await;
    sidecar
        .store
        .fail_all(StoreError::Unavailable("connection refused".into()));
    let pending = sidecar.without_a_write(sidecar.delete(&path)).await;
    assert_eq!(pending.status, 202);
    assert_eq!(pending.body["release"], "pending");
    assert!(
        pending.body["detail"]
            .as_str()
            .unwrap()
            .contains("retries until")
    );
    sidecar
        .get(&path)
        .await
        .is_problem(410, "lease_lost", "released");
    sidecar.store.heal();
    while sidecar.store.lock("r").unwrap().grant.is_some() {
        let moment = Duration::from_millis(10);
        tokio::time::sleep(moment).await;
        sidecar.clock.advance(moment);
    }
    assert_eq!(sidecar.delete(&path).await.status, 204);
}

#[tokio::test]
async fn an_unknown_lease_is_not_found() {
    let sidecar = Sidecar::start().await;
    sidecar.lease("r").await;
    let asked = [
        (Method::GET, "/v1/locks/no-such.0"),
        (Method::DELETE, "/v1/locks/no-such.0"),
        (Method::POST, "/v1/locks/no-such.0/renew"),
    ];
    for (method, path) in asked {
        let answer = sidecar
            .without_a_write(send(sidecar.request(method, path)))
            .await;
        answer.is_problem(404, "lease_unknown", "acquire it again");
    }
}

#[tokio::test]
async fn a_lost_lease_is_gone_with_its_reason() {
    let silent = Sidecar::start().await;
    let body = json!({"resource": "r", "ttlSeconds": 2});
    let acquired = silent.post("/v1/locks/acquire", body).await;
    let path = format!("/v1/locks/{}", acquired.body["leaseId"].as_str().unwrap());
    silent.clock.advance(Duration::from_secs(3));
    for answer in [
        silent.get(&path).await,
        silent.post(&format!("{path}/renew"), json!({})).await,
        silent.delete(&path).await,
    ] {
        answer.is_problem(410, "lease_lost", "within its own ttlSeconds");
        assert_eq!(answer.body["reason"], "app_silent");
    }

    let cut_off = Sidecar::start().await;
    let path = cut_off.lease("r").await;
    cut_off
        .store
        .fail_all(StoreError::Unavailable("connection refused".into()));
    cut_off.clock.advance(Duration::from_millis(14_250));
    let lost = cut_off.without_a_write(cut_off.get(&path)).await;
    lost.is_problem(410, "lease_lost", "could not renew its session");
    assert_eq!(lost.body["reason"], "session_expired");
}

#[tokio::test]
async fn locks_are_listed_by_prefix_and_page() {
    let sidecar = Sidecar::start().await;
    for resource in ["a:1", "a:2", "b:1"] {
        sidecar.lease(resource).await;
    }
    let released = sidecar.lease("a:3").await;
    sidecar.delete(&released).await;
    let listed = sidecar
        .without_a_write(sidecar.get("/v1/locks?prefix=a:&limit=2"))
        .await;
    let resources = |answer: &super::Answer| -> Vec<String> {
        let locks = answer.body["locks"].as_array().unwrap();
        locks
            .iter()
            .map(|lock| lock["resource"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(resources(&listed), ["a:1", "a:2"]);
    assert_eq!(listed.body["locks"][0]["holder"]["pod"], "pod-a");
    assert_eq!(listed.body["unreadable"], json!([]));
    let next = listed.body["continue"].as_str().unwrap();
    let rest = sidecar
        .get(&format!("/v1/locks?prefix=a:&limit=2&continue={next}"))
        .await;
    assert_eq!(resources(&rest), ["a:3"]);
    assert!(
        rest.body["locks"][0].get("holder").is_none(),
        "a free lock has no holder"
    );
    assert!(rest.body.get("continue").is_none());
    assert_eq!(resources(&sidecar.get("/v1/locks").await).len(), 4);
}

#[tokio::test]
async fn expired_listing_must_be_started_again() {
    let sidecar = Sidecar::start().await;
    for resource in ["a:1", "a:2", "b:1"] {
        sidecar.lease(resource).await;
    }
    let words = "list again without continue";
    let garbage = sidecar.get("/v1/locks?continue=garbage");
    let refused = sidecar.without_a_write(garbage).await;
    refused.is_problem(400, "invalid_request", words);
    assert!(!refused.headers.contains_key("retry-after"));

    // A valid token that is too old now.
    let page = sidecar.get("/v1/locks?limit=1").await;
    let path = format!(
        "/v1/locks?limit=1&continue={}",
        page.body["continue"].as_str().unwrap()
    );
    let expired = StoreError::ContinueTokenExpired("the continue parameter is too old".into());
    sidecar.store.fail(Call::ListLocks, expired.clone());
    let refused = sidecar.without_a_write(sidecar.get(&path)).await;
    refused.is_problem(400, "invalid_request", words);

    // The error happens during the agent's own search; its caller sent no `continue`.
    let mut lists = 0;
    sidecar.store.on_call(move |call| {
        lists += usize::from(call == Call::ListLocks);
        (lists == 2).then(|| expired.clone())
    });
    let searched = sidecar.get("/v1/locks?prefix=b:&limit=1").await;
    searched.is_problem(503, "store_unavailable", "retry after");
    let searched = sidecar.get("/v1/locks?prefix=b:&limit=1").await;
    assert_eq!(searched.body["locks"][0]["resource"], "b:1");
}

#[tokio::test]
async fn a_full_agent_names_its_bound() {
    let store = MemoryStore::default();
    let sidecar = Sidecar::in_pod("pod-a", &store, |config| config.max_leases = 1).await;
    sidecar.lease("r").await;
    let refused = sidecar.without_a_write(sidecar.acquire("r2")).await;
    refused.is_problem(429, "too_many_leases", "1 leases");
    assert_eq!(refused.body["limit"], 1);
}

#[tokio::test]
async fn stopping_agent_refuses_new_leases_as_shutting_down() {
    let sidecar = Sidecar::start().await;
    let path = sidecar.lease("r").await;
    sidecar.agent.shut_down(OnTerm::AppsEnded).await;
    let refused = sidecar.without_a_write(sidecar.acquire("r2")).await;
    refused.is_problem(503, "shutting_down", "another pod");
    assert_eq!(sidecar.get(&path).await.status, 410);
}

#[tokio::test]
async fn try_without_a_clear_answer_holds_no_lock() {
    let sidecar = Sidecar::start().await;
    sidecar.lease("warm-up").await;
    let unanswered = StoreError::Ambiguous("no answer within 5 ms".into());
    sidecar.fail_slowly(|call| call == Call::UpdateLock, unanswered);
    let unclear = sidecar.acquire("r").await;
    unclear.is_problem(503, "store_unavailable", "no answer within 5 ms");
    assert_eq!(unclear.headers["retry-after"], "1");
    sidecar.store.heal();
    let second = Sidecar::in_pod("pod-b", &sidecar.store, |_| {}).await;
    assert_eq!(second.acquire("r").await.status, 200);
}
