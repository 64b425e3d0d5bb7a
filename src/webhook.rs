//! The webhook that adds the sidecar to new pods.
//!
//! The API server calls it for each new pod that its configuration selects. `inject` decides,
//! purely, and the answer is a JSON patch that only adds. It sends no requests and keeps no state,
//! so every replica gives the same answer. It is not on the path of a lock: running pods do not
//! need it. Only `certs` handles its certificate, and only `http::serve` TLS.

pub mod certs;

mod annotations;
mod fence;
mod gate;
mod inject;
mod metrics;
mod obstacles;
mod patch;
mod ports;
mod quantity;
mod resources;
mod review;
mod settings;
mod sidecar;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use k8s_openapi::api::core::v1::Container;

pub use annotations::{ANNOTATIONS, Annotation};
pub use inject::{Decision, Review, decide};
use metrics::Metrics;
pub use quantity::Quantity;
pub use resources::Resources;
pub use settings::{ImagePullPolicy, Injection, InvalidInjection, Ports, TakeOver};

/// The proxy containers of service meshes, by the names that their injectors give them.
const MESH: [&str; 2] = ["istio-proxy", "linkerd-proxy"];

/// The API server accepts no larger request; a review has little more than the pod.
const BODY_MAX_BYTES: usize = 4 * 1024 * 1024;
/// The API server's timeout is five seconds.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// How much of a pod's text is repeated in a message: the API server has not validated it yet.
const EXCERPT_MAX_CHARS: usize = 60;
/// How much of an error is repeated in a message: it may contain parts of the value.
const REASON_MAX_CHARS: usize = 400;

/// Returns a pod's text for a message.
fn excerpt(text: &str) -> String {
    truncate(text, EXCERPT_MAX_CHARS)
}

fn truncate(text: &str, most: usize) -> String {
    let mut beginning: String = text.chars().take(most).collect();
    if beginning.len() < text.len() {
        beginning.push('…');
    }
    beginning
}

/// Returns whether it is an init container that runs as long as the pod.
fn is_native_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Adds sidecars and counts the results. A clone is another handle to the same injector.
#[derive(Clone)]
pub struct Injector(Arc<Inner>);

struct Inner {
    installation: Injection,
    metrics: Metrics,
    is_draining: AtomicBool,
}

impl Injector {
    /// Creates an injector for an installation.
    #[must_use]
    pub fn new(installation: Injection) -> Self {
        Self(Arc::new(Inner {
            installation,
            metrics: Metrics::new(),
            is_draining: AtomicBool::new(false),
        }))
    }

    /// Closes each connection after its next answer, so that later requests go to another replica.
    pub fn drain(&self) {
        self.0.is_draining.store(true, Ordering::Relaxed);
    }

    /// Returns the metrics in the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.0.metrics.encode()
    }

    fn answer(&self, body: &[u8]) -> Response {
        let Inner {
            installation,
            metrics,
            ..
        } = &*self.0;
        match review::answer(body, installation) {
            Ok((review, outcome)) => {
                metrics.record(outcome);
                ([(CONTENT_TYPE, "application/json")], review).into_response()
            }
            Err(error) => {
                tracing::warn!(%error, "rejected malformed AdmissionReview");
                self.refuse(StatusCode::BAD_REQUEST, &error.to_string())
            }
        }
    }

    /// An answer that is not a review, so the API server applies its failure policy.
    fn refuse(&self, status: StatusCode, sentence: &str) -> Response {
        self.0.metrics.record(metrics::INVALID);
        (status, format!("{sentence}\n")).into_response()
    }
}

/// Returns the router of `POST /inject`.
pub fn router(injector: Injector) -> Router {
    Router::new()
        .route("/inject", post(inject))
        .with_state(injector)
}

async fn inject(State(injector): State<Injector>, body: Body) -> Response {
    let mut answer = answer_to(&injector, body).await;
    if injector.0.is_draining.load(Ordering::Relaxed) {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
    answer
}

async fn answer_to(injector: &Injector, body: Body) -> Response {
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, BODY_MAX_BYTES)).await {
        Ok(Ok(bytes)) => injector.answer(&bytes),
        Ok(Err(_too_large_or_broken)) => injector.refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body ended early or has more than 4 MiB; an AdmissionReview of a pod is smaller",
        ),
        Err(_elapsed) => injector.refuse(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive within 5 s; send it without delay",
        ),
    }
}
