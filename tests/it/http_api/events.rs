//! Event streams over a real socket: their events, their end, and refusals before the first event.

use std::sync::Arc;
use std::time::Duration;

use leasehold::agent::OnTerm;
use leasehold::protocol::incident::{Incident, IncidentKind};
use leasehold::protocol::settings::{ReleaseMode, ReleaseRequest};
use leasehold::protocol::time::{SessionTtl, WallTime};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::{Sidecar, send};
use crate::memory_store::MemoryStore;

/// An event: its name and its data.
type Event = (String, Value);

pub(super) const LIMIT: Duration = Duration::from_secs(20);

pub(super) struct Stream {
    response: Response,
    read: String,
}

impl Stream {
    pub(super) async fn open(
        sidecar: &Sidecar,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Self {
        let mut request = sidecar.request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        let headers = response.headers();
        assert_eq!(headers["content-type"], "text/event-stream");
        assert_eq!(headers["cache-control"], "no-store");
        let read = String::new();
        Self { response, read }
    }

    pub(super) async fn hold(sidecar: &Sidecar, resource: &str) -> Self {
        let body = json!({"resource": resource, "ownerId": "app"});
        Self::open(sidecar, Method::POST, "/v1/locks/hold", Some(body)).await
    }

    /// Returns the next event, or `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<Event> {
        let read = async {
            loop {
                if let Some((event, rest)) = self.read.split_once("\n\n") {
                    let event = parsed(event);
                    self.read = rest.to_owned();
                    return Some(event);
                }
                let chunk = self.response.chunk().await.unwrap()?;
                self.read += std::str::from_utf8(&chunk).unwrap();
            }
        };
        tokio::time::timeout(LIMIT, read).await.expect("an event")
    }

    pub(super) async fn next_is(&mut self, name: &str) -> Value {
        let (is, data) = self.next().await.expect("an event");
        assert_eq!(is, name, "{data}");
        data
    }
}

fn parsed(event: &str) -> Event {
    let (name, data) = event.split_once('\n').unwrap();
    let name = name.strip_prefix("event: ").unwrap();
    let data = data.strip_prefix("data: ").unwrap();
    (name.into(), serde_json::from_str(data).unwrap())
}

/// Waits until the lock is free.
pub(super) async fn until_free(sidecar: &Sidecar, resource: &str) {
    let is_free = || {
        sidecar
            .store
            .lock(resource)
            .is_some_and(|lock| lock.grant.is_none())
    };
    let free = async {
        while !is_free() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, free)
        .await
        .expect("a free lock");
}

#[tokio::test]
async fn hold_returns_what_acquire_does_and_ends_when_closed() {
    let sidecar = Sidecar::start().await;
    let mut hold = Stream::hold(&sidecar, "r").await;
    let acquired = hold.next_is("acquired").await;
    assert_eq!(acquired["acquired"], true);
    assert_eq!(
        (&acquired["resource"], &acquired["ownerId"]),
        (&json!("r"), &json!("app"))
    );
    let path = format!("/v1/locks/{}", acquired["leaseId"].as_str().unwrap());
    let seen = sidecar.get(&path).await;
    assert_eq!(seen.body["fencingToken"], acquired["fencingToken"]);
    drop(hold);
    until_free(&sidecar, "r").await;
    sidecar
        .get(&path)
        .await
        .is_problem(410, "lease_lost", "released");
}

#[tokio::test]
async fn waiting_hold_names_the_holder_and_then_acquires() {
    let sidecar = Sidecar::start().await;
    let first = sidecar.lease("r").await;
    let mut hold = Stream::hold(&sidecar, "r").await;
    let waiting = hold.next_is("waiting").await;
    assert_eq!(waiting["resource"], "r");
    assert_eq!(waiting["holder"]["pod"], "pod-a", "{waiting}");
    assert!(waiting["queueLength"].is_u64());
    assert_eq!(sidecar.delete(&first).await.status, 204);
    hold.next_is("acquired").await;
}

/// Two pods on one store, of which the first has the lock.
async fn holder_and_other() -> (Sidecar, String, Sidecar) {
    let store = MemoryStore::default();
    let holder = Sidecar::in_pod("pod-a", &store, |_| {}).await;
    let lease = holder.lease("r").await;
    let other = Sidecar::in_pod("pod-b", &store, |_| {}).await;
    (holder, lease, other)
}

fn queue_length(sidecar: &Sidecar) -> usize {
    sidecar.store.lock("r").unwrap().waiters.len()
}

#[tokio::test]
async fn tried_hold_gets_the_problem_document_of_acquire() {
    let (_holder, _, other) = holder_and_other().await;
    let body = json!({"resource": "r", "waitSeconds": 0});
    let hold = other.post("/v1/locks/hold", body);
    let refused = other.without_a_write(hold).await;
    refused.is_problem(409, "lock_held", "send waitSeconds to join the queue");
    assert_eq!(refused.body, other.acquire("r").await.body);
    assert_eq!(queue_length(&other), 0);
}

#[tokio::test]
async fn hold_whose_wait_is_over_ends_with_lock_held() {
    let (_holder, _, other) = holder_and_other().await;
    let body = json!({"resource": "r", "waitSeconds": 4});
    let path = "/v1/locks/hold";
    let mut hold = Stream::open(&other, Method::POST, path, Some(body)).await;
    hold.next_is("waiting").await;
    other.clock.advance(Duration::from_secs(4));
    let refused = hold.next_is("error").await;
    let tried = other.acquire("r").await.body;
    for name in ["type", "status", "code", "acquired", "holder"] {
        assert_eq!(refused[name], tried[name], "{name}: {refused}");
    }
    assert_eq!(refused["queueLength"], 0);
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("waitSeconds have passed"), "{detail}");
    assert_eq!(hold.next().await, None);
    let left = async {
        while queue_length(&other) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let left = tokio::time::timeout(LIMIT, left).await;
    left.expect("no queue entry");
}

#[tokio::test]
async fn hold_with_a_limited_wait_acquires_after_release() {
    let (holder, lease, other) = holder_and_other().await;
    let body = json!({"resource": "r", "waitSeconds": 604_800});
    let path = "/v1/locks/hold";
    let mut hold = Stream::open(&other, Method::POST, path, Some(body)).await;
    hold.next_is("waiting").await;
    assert_eq!(holder.delete(&lease).await.status, 204);
    // The clock is paused, so only its advance makes the waiter read the lock.
    other.clock.advance(Duration::from_secs(5));
    hold.next_is("acquired").await;
}

#[tokio::test]
async fn release_ends_the_stream_silently_and_a_loss_is_reported() {
    let sidecar = Sidecar::start().await;
    let lease = sidecar.lease("r").await;
    let events = format!("{lease}/events");
    let mut stream = Stream::open(&sidecar, Method::GET, &events, None).await;
    let heartbeat = stream.next_is("heartbeat").await;
    let names: Vec<_> = heartbeat.as_object().unwrap().keys().cloned().collect();
    assert_eq!(
        names,
        ["expiresAt", "fencingToken", "leaseId", "validForMs"]
    );
    assert_eq!(sidecar.delete(&lease).await.status, 204);
    assert_eq!(stream.next().await, None);

    let lease = sidecar.lease("r").await;
    let events = format!("{lease}/events");
    let mut stream = Stream::open(&sidecar, Method::GET, &events, None).await;
    stream.next_is("heartbeat").await;
    sidecar.store.delete_lock("r");
    let lost = stream.next_is("lost").await;
    assert_eq!(lost["reason"], "grant_gone");
    assert!(
        lost["detail"].as_str().unwrap().contains("deleted"),
        "{lost}"
    );
    assert_eq!(stream.next().await, None);
    sidecar
        .get(&events)
        .await
        .is_problem(410, "lease_lost", "deleted");
}

#[tokio::test]
async fn heartbeats_cause_no_requests_to_the_store() {
    let store = MemoryStore::default();
    let short = |config: &mut leasehold::agent::Config| config.session_ttl = SessionTtl::clamped(3);
    let sidecar = Sidecar::in_pod("pod-a", &store, short).await;
    let mut hold = Stream::hold(&sidecar, "r").await;
    hold.next_is("acquired").await;
    // The clock of these tests is paused, so nothing else is due; it is advanced for one heartbeat.
    let writes = store.writes();
    sidecar.clock.advance(Duration::from_millis(900));
    hold.next_is("heartbeat").await;
    assert!(
        store.writes() <= writes + 1,
        "at most the session's renewal"
    );
}

#[tokio::test]
async fn refusal_before_the_first_event_is_a_problem_document() {
    let store = MemoryStore::default();
    let sidecar = Sidecar::in_pod("pod-a", &store, |config| config.max_streams = 1).await;
    let hold = async |body: Value| {
        sidecar
            .without_a_write(sidecar.post("/v1/locks/hold", body))
            .await
    };
    for (body, words) in [
        (json!({"resource": "r", "requestId": "x"}), "requestId"),
        (json!({"resource": "r", "ttlSeconds": 30}), "ttlSeconds"),
        (json!({"resource": "r", "waitSeconds": -1}), "0 to 604800"),
        (
            json!({"resource": "r", "waitSeconds": 604_801}),
            "omit it to wait without a limit",
        ),
        (
            json!({"resource": "r", "maxHoldSeconds": 0}),
            "maxHoldSeconds",
        ),
        (
            json!({"resource": "r", "maxHoldSeconds": 604_801}),
            "604800",
        ),
        (json!({"ownerId": "app"}), "resource"),
    ] {
        hold(body).await.is_problem(400, "invalid_request", words);
    }
    let nothing = json!({"resource": ""});
    hold(nothing).await.is_problem(400, "resource_invalid", "");
    let unknown = sidecar.get("/v1/locks/nope/events").await;
    unknown.is_problem(404, "lease_unknown", "lease not found");
    let wrong = send(sidecar.request(Method::GET, "/v1/locks/hold/renew")).await;
    wrong.is_problem(405, "method_not_allowed", "method");

    let lease = sidecar.lease("other").await;
    let _open = Stream::hold(&sidecar, "r").await;
    let refused = hold(json!({"resource": "r2"})).await;
    refused.is_problem(429, "too_many_streams", "1 event streams");
    assert_eq!(refused.body["limit"], 1);
    let refused = sidecar.get(&format!("{lease}/events")).await;
    refused.is_problem(429, "too_many_streams", "close unused streams");
}

#[tokio::test]
async fn release_request_reaches_streams_renewals_and_reads() {
    let sidecar = Sidecar::start().await;
    let lease = sidecar.lease("r").await;
    let events = format!("{lease}/events");
    let mut stream = Stream::open(&sidecar, Method::GET, &events, None).await;
    stream.next_is("heartbeat").await;
    let before = sidecar.get(&lease).await;
    assert_eq!(before.body.get("releaseRequested"), None);
    sidecar.store.edit_lock("r", |lock| {
        let grant = lock.grant.as_ref().unwrap();
        lock.settings.release_request = Some(Arc::new(ReleaseRequest {
            lease: grant.id.as_str().into(),
            mode: ReleaseMode::Ask,
            reason: "maintenance".into(),
            actor: "alice".into(),
        }));
    });
    let told = stream.next_is("release-requested").await;
    let names: Vec<_> = told.as_object().unwrap().keys().cloned().collect();
    let promised = [
        "actor",
        "expiresAt",
        "fencingToken",
        "leaseId",
        "message",
        "reason",
        "validForMs",
    ];
    assert_eq!(names, promised);
    let asked = json!({"reason": "person_asked", "actor": "alice", "message": "maintenance"});
    for name in ["reason", "actor", "message"] {
        assert_eq!(told[name], asked[name], "{told}");
    }
    let renewed = sidecar.post(&format!("{lease}/renew"), json!({})).await;
    assert_eq!(renewed.body["releaseRequested"], asked);
    assert_eq!(sidecar.get(&lease).await.body["releaseRequested"], asked);
}

#[tokio::test]
async fn every_call_reports_a_grant_ended_by_force() {
    let sidecar = Sidecar::start().await;
    let lease = sidecar.lease("r").await;
    let events = format!("{lease}/events");
    let mut stream = Stream::open(&sidecar, Method::GET, &events, None).await;
    stream.next_is("heartbeat").await;
    sidecar.store.edit_lock("r", |lock| {
        let grant = lock.grant.take().unwrap();
        lock.incidents.push(Incident {
            at: WallTime(0),
            kind: IncidentKind::ForceReleased,
            token: lock.token,
            grant: Some(grant.id),
            owner: grant.holder.owner,
            pod: grant.holder.pod.name,
            actor: "alice".into(),
            reason: "it hangs".into(),
        });
    });
    let lost = stream.next_is("lost").await;
    assert_eq!(lost["reason"], "force_released");
    assert_eq!(stream.next().await, None);
    for answer in [
        sidecar.post(&format!("{lease}/renew"), json!({})).await,
        sidecar.get(&lease).await,
        sidecar.get(&events).await,
        sidecar.delete(&lease).await,
    ] {
        answer.is_problem(410, "lease_lost", "ended by a force release");
        assert_eq!(answer.body["reason"], "force_released");
    }
}

#[tokio::test]
async fn stop_is_an_error_for_waiters_and_a_request_for_holders() {
    let sidecar = Sidecar::start().await;
    let mut held = Stream::hold(&sidecar, "r").await;
    held.next_is("acquired").await;
    let mut waits = Stream::hold(&sidecar, "r").await;
    waits.next_is("waiting").await;
    let agent = sidecar.agent.clone();
    let stopping = tokio::spawn(async move { agent.shut_down(OnTerm::Wait).await });
    let refused = waits.next_is("error").await;
    assert_eq!(refused["code"], "shutting_down");
    assert_eq!(refused["status"], 503);
    assert_eq!(waits.next().await, None);
    let requested = held.next_is("release-requested").await;
    assert_eq!(requested["reason"], "agent_stopping");
    let late = sidecar
        .post("/v1/locks/hold", json!({"resource": "r2"}))
        .await;
    late.is_problem(503, "shutting_down", "");
    drop(held);
    tokio::time::timeout(LIMIT, stopping)
        .await
        .unwrap()
        .unwrap();
    until_free(&sidecar, "r").await;
}
