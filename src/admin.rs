//! The port for the kubelet and for Prometheus: health, readiness, metrics.
//!
//! It tells local facts only. An outage of the API server changes none of its answers: it must
//! not turn every injected pod unready. It names no locks, so that it may listen on the pod's
//! address.

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::agent::Agent;

/// The media type of Prometheus' text format.
const METRICS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The admin endpoints of an agent.
pub fn router(agent: Agent) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(agent)
}

async fn readyz(State(agent): State<Agent>) -> Response {
    if agent.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response();
    }
    "ok\n".into_response()
}

async fn metrics(State(agent): State<Agent>) -> Response {
    ([(CONTENT_TYPE, METRICS_TEXT)], agent.metrics().encode()).into_response()
}
