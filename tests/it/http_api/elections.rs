//! Elections over a real socket: their answers and refusals.

use reqwest::Method;
use serde_json::{Value, json};

use super::events::{Stream, until_free};
use super::{Sidecar, send};
use crate::memory_store::MemoryStore;

async fn candidacy(sidecar: &Sidecar, body: Option<Value>) -> Stream {
    Stream::open(sidecar, Method::POST, "/v1/elections/jobs/candidacy", body).await
}

#[tokio::test]
async fn candidacy_is_a_hold_that_reports_token_lease_and_validity() {
    let sidecar = Sidecar::start().await;
    let body = json!({"ownerId": "app", "metadata": {"zone": "b"}, "maxHoldSeconds": 600});
    let mut candidacy = candidacy(&sidecar, Some(body)).await;
    let acquired = candidacy.next_is("acquired").await;
    assert_eq!(acquired["resource"], "election:jobs");
    let told = sidecar.get("/v1/elections/jobs").await;
    assert_eq!(told.status, 200, "{told:?}");
    assert_eq!(told.headers["cache-control"], "no-store");
    let told = told.body;
    assert_eq!(told["leader"], true);
    assert_eq!(
        (&told["name"], &told["resource"]),
        (&json!("jobs"), &json!("election:jobs"))
    );
    assert_eq!(told["leaseId"], acquired["leaseId"]);
    assert_eq!(told["fencingToken"], acquired["fencingToken"]);
    assert!(
        told["validForMs"].as_u64().is_some_and(|ms| ms > 0),
        "{told}"
    );
    assert_eq!(told["holder"]["pod"], "pod-a");
    assert_eq!(told["holder"]["ownerId"], "app");
    assert_eq!(told["holder"]["metadata"]["zone"], "b");
    assert_eq!(told["ageMs"], Value::Null);
    let token = &told["fencingToken"];
    let verified = json!({"resource": told["resource"], "fencingToken": token});
    let verified = sidecar.post("/v1/fencing/verify", verified).await;
    assert_eq!(
        (verified.status, &verified.body["exact"]),
        (200, &json!(true))
    );

    // To resign is to release. The lead ends immediately; clients that read it earlier keep their
    // validity.
    let lease = told["leaseId"].as_str().unwrap();
    let path = format!("/v1/locks/{lease}");
    let released = sidecar.delete(&path).await;
    let pending = &released.body["release"];
    assert_eq!((released.status, pending), (202, &json!("pending")));
    assert_eq!(candidacy.next().await, None);
    let after = sidecar.get("/v1/elections/jobs").await;
    assert_eq!((after.status, &after.body["leader"]), (200, &json!(false)));
    sidecar.get(&path).await.is_problem(410, "lease_lost", "");
    sidecar.clock.advance(std::time::Duration::from_secs(2));
    until_free(&sidecar, "election:jobs").await;
    assert_eq!(sidecar.delete(&path).await.status, 204);
}

#[tokio::test]
async fn follower_receives_leader_and_age_but_no_validity() {
    let store = MemoryStore::default();
    let a = Sidecar::in_pod("pod-a", &store, |_| {}).await;
    let b = Sidecar::in_pod("pod-b", &store, |_| {}).await;
    let mut leading = candidacy(&a, None).await;
    let acquired = leading.next_is("acquired").await;
    let mut waiting = candidacy(&b, None).await;
    assert_eq!(waiting.next_is("waiting").await["holder"]["pod"], "pod-a");
    let told = b.get("/v1/elections/jobs").await.body;
    assert_eq!(told["leader"], false);
    assert_eq!(told["holder"]["pod"], "pod-a");
    assert_eq!(told["holder"]["ownerId"], "pod-a");
    assert_eq!(told["fencingToken"], acquired["fencingToken"]);
    assert!(told["ageMs"].is_u64(), "{told}");
    assert_eq!(
        (&told["validForMs"], &told["leaseId"]),
        (&Value::Null, &Value::Null)
    );

    let path = "/v1/elections/jobs/events";
    let mut events = Stream::open(&b, Method::GET, path, None).await;
    assert_eq!(events.next_is("follower").await["holder"]["pod"], "pod-a");
    drop(leading);
    assert_eq!(waiting.next_is("acquired").await["ownerId"], "pod-b");
    let led = events.next_is("leader").await;
    assert_eq!(led["holder"]["pod"], "pod-b");
    assert!(
        led["validForMs"].is_u64() && led["leaseId"].is_string(),
        "{led}"
    );
    drop(waiting);
    assert_eq!(events.next_is("follower").await["leader"], false);
    // Its validity was up to a second and a half.
    b.clock.advance(std::time::Duration::from_secs(2));
    until_free(&b, "election:jobs").await;
}

#[tokio::test]
async fn election_without_candidates_is_404_with_the_remedy() {
    let sidecar = Sidecar::start().await;
    for path in ["/v1/elections/jobs", "/v1/elections/jobs/events"] {
        let unknown = sidecar.get(path).await;
        unknown.is_problem(404, "election_unknown", "--elect jobs");
    }
    assert_eq!(sidecar.store.writes(), 0);
}

#[tokio::test]
async fn invalid_election_name_is_refused_with_valid_characters() {
    let sidecar = Sidecar::start().await;
    let too_long = "a".repeat(57);
    for bad in [
        "Jobs", "-jobs", "jobs-", "a.b", "a%2Fb", "a%20b", "%FF", &too_long,
    ] {
        let path = format!("/v1/elections/{bad}");
        sidecar
            .get(&path)
            .await
            .is_problem(400, "election_invalid", "");
        let events = sidecar.get(&format!("{path}/events")).await;
        events.is_problem(400, "election_invalid", "");
        let run = sidecar.request(Method::POST, &format!("{path}/candidacy"));
        send(run).await.is_problem(400, "election_invalid", "");
    }
    let refused = sidecar.get("/v1/elections/Jobs").await;
    refused.is_problem(400, "election_invalid", "lower-case letters");
    assert_eq!(sidecar.store.calls(), 0);
}

#[tokio::test]
async fn foreign_candidacy_fields_are_refused_by_name() {
    let sidecar = Sidecar::start().await;
    let bad = [
        (json!({"ttlSeconds": 5}), "ttlSeconds"),
        (json!({"waitSeconds": 5}), "waitSeconds"),
        (json!({"resource": "r"}), "resource"),
        (json!({"requestId": "x"}), "requestId"),
        (json!({"maxHoldSeconds": 0}), "maxHoldSeconds"),
        (json!({"maxHoldSeconds": 604_801}), "maxHoldSeconds"),
        (json!({"ownerId": ""}), "ownerId"),
        (json!([]), "array"),
    ];
    for (body, words) in bad {
        let refused = sidecar.post("/v1/elections/jobs/candidacy", body).await;
        refused.is_problem(400, "invalid_request", words);
    }
    assert_eq!(sidecar.store.calls(), 0);
}
