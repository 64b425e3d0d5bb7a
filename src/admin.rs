//! The admin port for the kubelet and Prometheus: health, readiness, metrics.
//!
//! It reports only local facts. An outage of the API server does not change its answers, because it
//! must not make every injected pod unready. It names no locks, so it may listen on the pod's
//! address.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::agent::Agent;

/// The media type of Prometheus' text format.
const METRICS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The status of a role.
pub trait AdminStatus: Send + Sync + 'static {
    /// Returns whether the role is ready.
    ///
    /// # Errors
    /// The reason, in a few words.
    fn ready(&self) -> Result<(), String>;

    /// Returns its metrics in the text format.
    fn metrics(&self) -> String;
}

impl AdminStatus for Agent {
    fn ready(&self) -> Result<(), String> {
        if self.is_draining() {
            return Err("shutting down".to_owned());
        }
        Ok(())
    }

    fn metrics(&self) -> String {
        Agent::metrics(self).encode()
    }
}

/// Returns the admin endpoints.
pub fn router(status: impl AdminStatus) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(status) as Arc<dyn AdminStatus>)
}

async fn readyz(State(status): State<Arc<dyn AdminStatus>>) -> Response {
    match status.ready() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(status): State<Arc<dyn AdminStatus>>) -> Response {
    ([(CONTENT_TYPE, METRICS_TEXT)], status.metrics()).into_response()
}
