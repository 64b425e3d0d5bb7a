//! The port for the kubelet and for Prometheus: health, readiness, metrics.
//!
//! It tells local facts only. An outage of the API server changes none of its answers: it must
//! not turn every injected pod unready. It names no locks, so that it may listen on the pod's
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

/// What a role says about itself.
pub trait Inside: Send + Sync + 'static {
    /// Whether it does its work.
    ///
    /// # Errors
    /// Why it does not, in a few words.
    fn ready(&self) -> Result<(), String>;

    /// Its metrics, in the text format.
    fn metrics(&self) -> String;
}

impl Inside for Agent {
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

/// The admin endpoints.
pub fn router(inside: impl Inside) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(inside) as Arc<dyn Inside>)
}

async fn readyz(State(inside): State<Arc<dyn Inside>>) -> Response {
    match inside.ready() {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn metrics(State(inside): State<Arc<dyn Inside>>) -> Response {
    ([(CONTENT_TYPE, METRICS_TEXT)], inside.metrics()).into_response()
}
