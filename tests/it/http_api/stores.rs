//! Errors of the store, and the answers to the app.

use leasehold::protocol::token::MAX_BASE;
use leasehold::store::StoreError;

use serde_json::json;

use super::{Answer, Sidecar, VERIFY_BATCH};
use crate::memory_store::{Call, MemoryStore};

/// Returns a sidecar that has its session and knows a free lock, so that a refused acquire writes
/// nothing else.
async fn warm() -> Sidecar {
    let sidecar = Sidecar::start().await;
    sidecar.lease("warm-up").await;
    let free = sidecar.lease("free").await;
    assert_eq!(sidecar.delete(&free).await.status, 204);
    sidecar
}

async fn acquire_failing(call: Call, error: StoreError) -> Answer {
    let sidecar = warm().await;
    sidecar.store.fail(call, error);
    let resource = if call == Call::CreateLock {
        "new"
    } else {
        "free"
    };
    let refused = sidecar.without_a_write(sidecar.acquire(resource)).await;
    sidecar.store.heal();
    let recovered = sidecar.acquire(resource).await;
    assert_eq!(recovered.status, 200, "{recovered:?}");
    refused
}

#[tokio::test]
async fn a_missing_right_is_named() {
    let words = "distributedlocks.leasehold.dev is forbidden: User \"u\" cannot create resource \
                 \"distributedlocks\" in API group \"leasehold.dev\" in the namespace \"team-a\"";
    let refused = acquire_failing(Call::CreateLock, StoreError::Denied(words.into())).await;
    refused.is_problem(403, "forbidden", words);
    assert_eq!(
        refused.body["missingRight"],
        "create distributedlocks in leasehold.dev"
    );
    refused.is_problem(403, "forbidden", "with a RoleBinding");
}

#[tokio::test]
async fn rejected_credentials_are_not_reported_as_a_missing_right() {
    let words = "the API server does not accept the credentials (401): Unauthorized";
    let error = StoreError::Unauthenticated(words.into());
    let refused = acquire_failing(Call::UpdateLock, error).await;
    refused.is_problem(403, "forbidden", words);
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(!detail.contains("RoleBinding") && !detail.contains("policy"));
    assert!(refused.body.get("missingRight").is_none());
}

#[tokio::test]
async fn message_of_a_policy_is_passed_on() {
    let words = "ValidatingAdmissionPolicy 'leasehold-identity' denied request: not your pod";
    let refused = acquire_failing(Call::UpdateLock, StoreError::Denied(words.into())).await;
    refused.is_problem(403, "forbidden", words);
    assert!(refused.body.get("missingRight").is_none());
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(!detail.contains("RoleBinding"), "{detail}");
}

#[tokio::test]
async fn a_used_up_quota_is_named() {
    let error = StoreError::QuotaExceeded("exceeded quota: locks, limited: 100".into());
    let refused = acquire_failing(Call::CreateLock, error).await;
    refused.is_problem(403, "quota_exceeded", "exceeded quota: locks");
}

#[tokio::test]
async fn object_of_another_resource_is_never_shared() {
    let error = StoreError::Collision {
        name: "r".into(),
        found: "R".into(),
    };
    let sidecar = warm().await;
    sidecar.store.on_call(move |call| match call {
        Call::CreateLock => Some(StoreError::Conflict),
        Call::GetLock => Some(error.clone()),
        _ => None,
    });
    let refused = sidecar.without_a_write(sidecar.acquire("r")).await;
    refused.is_problem(409, "name_collision", "guards another resource");
    assert_eq!(refused.body["guards"], "R");
    let verified = sidecar.without_a_write(sidecar.verify("r", 1)).await;
    verified.is_problem(409, "name_collision", "guards another resource");
}

#[tokio::test]
async fn unavailable_store_is_reported_and_no_state_invented() {
    for error in [
        StoreError::Unavailable("connection refused".into()),
        StoreError::Ambiguous("HTTP 504 Gateway Timeout".into()),
    ] {
        let words = error.to_string();
        let sidecar = warm().await;
        sidecar.fail_slowly(|_| true, error);
        let batch = json!({"tokens": [{"resource": "warm-up", "fencingToken": 1}]});
        for answer in [
            sidecar
                .without_a_write(sidecar.post(VERIFY_BATCH, batch))
                .await,
            sidecar.without_a_write(sidecar.acquire("r")).await,
            sidecar.without_a_write(sidecar.verify("warm-up", 1)).await,
            sidecar.without_a_write(sidecar.get("/v1/locks")).await,
        ] {
            answer.is_problem(503, "store_unavailable", &words);
            assert_eq!(answer.headers["retry-after"], "1");
        }
    }
}

#[tokio::test]
async fn missing_definitions_are_named() {
    let error = StoreError::NotInstalled("install the CRDs".into());
    let sidecar = Sidecar::start().await;
    sidecar.store.fail_all(error);
    for refused in [
        sidecar.without_a_write(sidecar.acquire("r")).await,
        sidecar.without_a_write(sidecar.verify("r", 1)).await,
        sidecar.without_a_write(sidecar.get("/v1/locks")).await,
    ] {
        refused.is_problem(503, "not_installed", "install the CRDs");
        assert!(
            !refused.headers.contains_key("retry-after"),
            "time alone does not help"
        );
    }
}

#[tokio::test]
async fn unreadable_object_grants_and_verifies_nothing() {
    let sidecar = warm().await;
    sidecar.store.fail(
        Call::GetLock,
        StoreError::Unreadable("status.token: -1".into()),
    );
    let answer = sidecar.without_a_write(sidecar.verify("warm-up", 1)).await;
    answer.is_problem(502, "object_unreadable", "status.token: -1");
    let refused = acquire_failing(
        Call::CreateLock,
        StoreError::Invalid("spec.resource".into()),
    )
    .await;
    refused.is_problem(502, "object_refused", "spec.resource");
}

#[tokio::test]
async fn tokens_beyond_json_integers_are_not_granted() {
    let store = MemoryStore::default();
    let sidecar = Sidecar::in_pod("pod-a", &store, |config| config.token_floor = MAX_BASE).await;
    let refused = sidecar.acquire("r").await;
    refused.is_problem(500, "token_exhausted", "check the token floor");
    assert!(
        store.lock("r").is_none_or(|lock| lock.grant.is_none()),
        "nothing is held"
    );
}

#[tokio::test]
async fn store_that_lost_writes_is_detected() {
    let sidecar = warm().await;
    sidecar.store.go_back(2);
    let refused = sidecar.without_a_write(sidecar.get("/v1/locks")).await;
    refused.is_problem(503, "store_went_back", "--bump-revision");
    assert!(
        !refused.headers.contains_key("retry-after"),
        "time alone does not help"
    );
}

#[tokio::test]
async fn panic_is_answered_with_an_internal_error() {
    let sidecar = warm().await;
    sidecar.store.on_call(|call| match call {
        Call::ListLocks => panic!("on purpose"),
        _ => None,
    });
    let answer = sidecar.without_a_write(sidecar.get("/v1/locks")).await;
    answer.is_problem(500, "internal", "internal error");
    sidecar.store.heal();
    assert_eq!(sidecar.get("/v1/locks").await.status, 200);
}
