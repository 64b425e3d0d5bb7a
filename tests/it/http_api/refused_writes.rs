//! Reports of refused writes: which are accepted, what is counted, and how many Events are tried.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leasehold::agent::EVENT_PAUSE;
use leasehold::protocol::time::WallTime;
use leasehold::protocol::token::Token;
use leasehold::store::StoreError;
use leasehold::store::cluster::{RefusalEvents, RefusedWrite};
use serde_json::{Value, json};

use super::{Answer, Sidecar};
use crate::memory_store::MemoryStore;

/// Events, which an API server may refuse.
#[derive(Default)]
struct Events {
    written: Mutex<Vec<RefusedWrite>>,
    error: Mutex<Option<StoreError>>,
}

#[async_trait]
impl RefusalEvents for Events {
    async fn write(
        &self,
        refused: &RefusedWrite,
        _latest: Token,
        _at: WallTime,
    ) -> Result<(), StoreError> {
        self.written.lock().unwrap().push(refused.clone());
        self.error.lock().unwrap().clone().map_or(Ok(()), Err)
    }
}

impl Events {
    fn count(&self) -> usize {
        self.written.lock().unwrap().len()
    }
}

impl Sidecar {
    /// Acquires a lock twice, and returns the stale token and the current one.
    async fn two_tokens(&self, resource: &str) -> (u64, u64) {
        let first = self.acquire(resource).await;
        let path = format!("/v1/locks/{}", first.body["leaseId"].as_str().unwrap());
        assert_eq!(self.delete(&path).await.status, 204);
        let second = self.acquire(resource).await;
        let token = |answer: &Answer| answer.body["fencingToken"].as_u64().unwrap();
        (token(&first), token(&second))
    }

    async fn reported(&self, body: Value) -> Answer {
        self.post("/v1/fencing/refusals", body).await
    }

    /// Reports, and asserts that the store is unchanged.
    async fn report(&self, body: Value) -> Answer {
        self.without_a_write(self.reported(body)).await
    }

    /// Returns how many reports were counted.
    fn counted(&self) -> u64 {
        let text = self.agent.metrics().encode();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("leasehold_refused_writes_total "));
        line.unwrap().parse().unwrap()
    }
}

fn refused(resource: &str, token: u64) -> Value {
    json!({"resource": resource, "fencingToken": token})
}

#[tokio::test]
async fn only_a_stale_token_is_counted() {
    let store = MemoryStore::default();
    let sidecar = Sidecar::in_pod("pod-a", &store, |_| {}).await;
    let (old, new) = sidecar.two_tokens("r").await;
    let reported = sidecar.report(refused("r", old)).await;
    assert_eq!(reported.status, 200, "{reported:?}");
    let detail = "the report was counted, without an Event: this agent uses no cluster";
    let expected = json!({"latestFencingToken": new, "hasEvent": false, "detail": detail});
    assert_eq!(reported.body, expected);
    let current = sidecar.report(refused("r", new)).await;
    current.is_problem(409, "token_current", "no later lease of it is known");
    for resource in ["r", "never"] {
        let unknown = sidecar.report(refused(resource, new + 5_000)).await;
        unknown.is_problem(409, "unknown_token", "was not granted for this resource");
    }
    assert_eq!(sidecar.counted(), 1);
    // Of the leases of one grant only the holder's agent and the guarded resource know which is the last one.
    let other = Sidecar::in_pod("pod-b", &store, |_| {}).await;
    let report = |token: u64, latest: u64| {
        other.report(json!({"resource": "r", "fencingToken": token, "latestFencingToken": latest, "guard": "orders"}))
    };
    other
        .report(refused("r", new))
        .await
        .is_problem(409, "token_current", "latestFencingToken");
    for latest in [new, new - 1, new + 5_000] {
        report(new, latest)
            .await
            .is_problem(409, "token_current", "latestFencingToken");
    }
    assert_eq!(other.counted(), 0);
    let reported = report(new, new + 1).await;
    assert_eq!(
        (reported.status, &reported.body["latestFencingToken"]),
        (200, &json!(new + 1))
    );
    assert_eq!(other.counted(), 1);
    let held = json!({"resource": "r", "fencingToken": new, "latestFencingToken": new + 1});
    let of_the_holder = sidecar.report(held).await;
    of_the_holder.is_problem(409, "token_current", "no later lease of it is known");
}

#[tokio::test]
async fn the_last_token_of_a_free_lock_is_stale() {
    let sidecar = Sidecar::start().await;
    let held = sidecar.acquire("r").await;
    let token = held.body["fencingToken"].as_u64().unwrap();
    let path = format!("/v1/locks/{}", held.body["leaseId"].as_str().unwrap());
    assert_eq!(sidecar.delete(&path).await.status, 204);
    let reported = sidecar.report(refused("r", token)).await;
    // No newer token exists.
    assert_eq!(
        (reported.status, &reported.body["latestFencingToken"]),
        (200, &json!(token))
    );
    // One that was never granted is not repeated.
    for (latest, expected) in [(token + 1, token + 1), (token + 5_000, token)] {
        let body = json!({"resource": "r", "fencingToken": token, "latestFencingToken": latest});
        let reported = sidecar.report(body).await;
        assert_eq!(
            reported.body["latestFencingToken"], expected,
            "{reported:?}"
        );
    }
}

#[tokio::test]
async fn wrong_field_of_a_report_is_named() {
    let sidecar = Sidecar::start().await;
    let cases = [
        (json!({"resource": "r"}), "missing field `fencingToken`"),
        (
            json!({"resource": "r", "fencingToken": -1}),
            "fencingToken is -1",
        ),
        (
            json!({"resource": "r", "fencingToken": 1, "latestFencingToken": 1.5}),
            "latestFencingToken is 1.5",
        ),
        (
            json!({"resource": "r", "fencingToken": 1, "guard": ""}),
            "guard must be 1 to 128 bytes",
        ),
        (
            json!({"resource": "r", "fencingToken": 1, "guard": "x".repeat(129)}),
            "guard must be 1 to 128 bytes",
        ),
        (
            json!({"resource": "r", "fencingToken": 1, "guard": "a\nb"}),
            "without control characters",
        ),
    ];
    for (body, words) in cases {
        sidecar
            .report(body)
            .await
            .is_problem(400, "invalid_request", words);
    }
    sidecar
        .report(refused("", 1))
        .await
        .is_problem(400, "resource_invalid", "resource is empty");
}

#[tokio::test]
async fn events_are_bounded_by_token_and_by_time() {
    let events = Arc::new(Events::default());
    let store = MemoryStore::default();
    let with_events = |agent: leasehold::agent::Agent| agent.with_refusal_events(events.clone());
    let sidecar = Sidecar::with_agent("pod-a", &store, |_| {}, with_events).await;
    let (old, _) = sidecar.two_tokens("r").await;
    let (other, _) = sidecar.two_tokens("s").await;
    for _ in 0..3 {
        let reported = sidecar.reported(refused("r", old)).await;
        assert_eq!(reported.body["hasEvent"], true, "{reported:?}");
    }
    assert_eq!(events.count(), 1);
    let limited = sidecar.reported(refused("s", other)).await;
    assert_eq!(limited.body["hasEvent"], false);
    let detail = limited.body["detail"].as_str().unwrap();
    assert!(
        detail.ends_with("the last attempt to write one was less than 10 s ago"),
        "{detail}"
    );
    assert_eq!((events.count(), sidecar.counted()), (1, 4));

    *events.error.lock().unwrap() = Some(StoreError::Denied("cannot create events".to_owned()));
    sidecar.clock.advance(EVENT_PAUSE);
    // The reason stays known, without another call.
    for _ in 0..2 {
        let failed = sidecar.reported(refused("s", other)).await;
        assert_eq!(failed.body["hasEvent"], false);
        let detail = failed.body["detail"].as_str().unwrap();
        assert!(
            detail.ends_with(
                "cannot create events; set the value sidecar.refusalEvents of the chart"
            ),
            "{detail}"
        );
    }
    // It is not the reason of another report.
    let limited = sidecar.reported(refused("r", old)).await;
    let detail = limited.body["detail"].as_str().unwrap();
    assert!(detail.contains("the last attempt"), "{detail}");
    assert_eq!(events.count(), 2);
    *events.error.lock().unwrap() = None;
    // The API server forgets Events, so a writer that does not stop gets another one.
    for expected in [3, 4] {
        sidecar.clock.advance(EVENT_PAUSE);
        let reported = sidecar.reported(refused("s", other)).await;
        assert_eq!(reported.body["hasEvent"], true, "{reported:?}");
        assert_eq!(events.count(), expected);
    }
}
