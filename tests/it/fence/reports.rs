//! Refused stale writes are reported to the sidecar that verifies tokens, which is a stub.

use std::sync::{Arc, Mutex};

use axum::routing::post;
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::raw::Service;
use super::{Fence, post as write, verifying_command};
use crate::dev::eventually;

/// A sidecar that finds each token current. It refuses a report, but only when it may answer.
struct Sidecar {
    url: String,
    reports: Arc<Mutex<Vec<Value>>>,
    may_answer: Arc<Notify>,
    _server: AbortOnDropHandle<()>,
}

impl Sidecar {
    async fn start() -> Self {
        let (reports, may_answer) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
        let (received, answer) = (reports.clone(), may_answer.clone());
        let verify = post(async || Json(json!({"current": true})));
        let report = post(async move |Json(report): Json<Value>| {
            received.lock().unwrap().push(report);
            answer.notified().await;
            let refusal = json!({"code": "token_current", "detail": "of the current grant"});
            (StatusCode::CONFLICT, Json(refusal))
        });
        let router = Router::new()
            .route("/v1/fencing/verify", verify)
            .route("/v1/fencing/refusals", report);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            url,
            reports,
            may_answer,
            _server: AbortOnDropHandle::new(server),
        }
    }
}

#[tokio::test]
async fn refused_stale_write_is_reported_without_delaying_its_answer() {
    let (sidecar, service) = (Sidecar::start().await, Service::listen().await);
    let log = tempfile::tempdir().unwrap();
    let upstream = format!("--upstream=http://{}", service.address());
    let url = format!("--url={}", sidecar.url);
    let command = verifying_command(&log.path().join("state"), &[&upstream, &url]);
    let fence = Fence::spawn(command, log).await;
    let mut client = fence.connect().await;
    client.send(write(9, "")).await;
    let (mut served, _head) = service.request().await;
    served
        .send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.status, 200);
    client.send("POST /w HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 428);
    client.send(write(7, "")).await;
    assert_eq!(client.answer().await.status, 412);
    let report = eventually(async || sidecar.reports.lock().unwrap().first().cloned()).await;
    let expected = json!({"resource": "r", "fencingToken": 7, "latestFencingToken": 9,
        "guard": format!("leasehold fence of {}", service.address())});
    assert_eq!(report, expected);
    // The sidecar has not answered yet.
    client.send(write(8, "")).await;
    assert_eq!(client.answer().await.status, 412);
    sidecar.may_answer.notify_one();
    let failed = fence.event("reporting a refused write failed").await;
    let error = failed["error"].as_str().unwrap();
    assert!(
        error.ends_with("409 Conflict: of the current grant"),
        "{error}"
    );
    // The next report follows after a pause.
    assert_eq!(sidecar.reports.lock().unwrap().len(), 1);
}
