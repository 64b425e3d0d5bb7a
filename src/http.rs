//! The HTTP API that a sidecar serves to the apps of its pod.
//!
//! It converts requests into calls of the agent, and results and refusals into JSON. It keeps no
//! state and decides nothing about locks. Invariants: the arrival of a request is recorded before
//! its body is read, because `validForMs` counts from there. Every refusal is a problem document. A
//! request that is refused here never reaches the store.

mod body;
mod checks;
mod compat;
mod dto;
mod elections;
mod error;
mod events;
mod examples;
mod explain;
mod faults;
mod fencing;
mod guard;
mod held;
mod locks;
mod openapi;
pub mod serve;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::Uri;
use tower_http::catch_panic::CatchPanicLayer;

use crate::agent::Agent;
use crate::protocol::time::Moment;
use error::{Code, Problem};

pub use axum::Router;
pub use compat::{Compat, compat_router};
pub use examples::all as problem_examples;
pub use faults::router_with_faults;
pub use openapi::document as openapi_document;

/// The settings of the API.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// Names besides localhost that are allowed in the Host header, without a port.
    pub allowed_hosts: Vec<String>,
    /// The namespace of the locks, which refusals name in a command; none without a cluster.
    pub namespace: Option<String>,
}

/// When the head of a request had been read.
#[derive(Clone, Copy, Debug)]
struct Arrived(Moment);

/// The state of every handler.
#[derive(Clone)]
struct Api {
    agent: Agent,
    allowed_hosts: Arc<[String]>,
    namespace: Option<Arc<str>>,
}

impl Api {
    fn new(agent: Agent, options: HttpOptions) -> Self {
        Self {
            agent,
            allowed_hosts: options.allowed_hosts.into(),
            namespace: options.namespace.map(Arc::from),
        }
    }
}

/// Returns the API of an agent.
pub fn router(agent: Agent, options: HttpOptions) -> Router {
    with_middleware(routes(), Api::new(agent, options))
}

/// Returns the router for a Unix socket: access to the socket identifies the clients, so any Host
/// header is allowed.
pub fn over_unix_socket(router: Router) -> Router {
    router.layer(Extension(guard::OverUnixSocket))
}

fn routes() -> Router<Api> {
    Router::new()
        .route("/v1/locks/acquire", post(locks::acquire))
        .route("/v1/locks/hold", post(events::hold))
        .route("/v1/locks/{leaseId}/events", get(events::lease_events))
        .route("/v1/locks/{leaseId}/renew", post(locks::renew))
        .route("/v1/locks/{leaseId}/complete", post(locks::complete))
        .route(
            "/v1/locks/{leaseId}",
            get(locks::get).delete(locks::release),
        )
        .route("/v1/locks", get(locks::list))
        .route("/v1/elections/{name}", get(elections::get))
        .route("/v1/elections/{name}/candidacy", post(elections::candidacy))
        .route("/v1/elections/{name}/events", get(elections::events))
        .route("/v1/fencing/verify", post(fencing::verify))
        .route("/v1/fencing/verify-batch", post(fencing::verify_batch))
        .route("/v1/fencing/refusals", post(fencing::report))
        .route("/openapi.json", get(openapi::openapi_json))
        // For processes without an admin port. It is not part of the API and its OpenAPI
        // description.
        .route("/healthz", get(async || "ok\n"))
}

/// Adds the middleware of every route.
fn with_middleware(routes: Router<Api>, api: Api) -> Router {
    routes
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        // The last layer is the outermost.
        .layer(middleware::from_fn_with_state(
            api.clone(),
            guard::require_local,
        ))
        .layer(CatchPanicLayer::custom(|_panic| internal().into_response()))
        .layer(middleware::from_fn_with_state(api.clone(), record_arrival))
        .with_state(api)
}

async fn record_arrival(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Arrived(api.agent.now()));
    next.run(request).await
}

async fn not_found(uri: Uri) -> Problem {
    path_not_found(uri.path())
}

async fn method_not_allowed() -> Problem {
    disallowed_method()
}

fn path_not_found(path: &str) -> Problem {
    Problem::new(
        Code::NotFound,
        format!("{path} not found; /openapi.json lists all paths"),
    )
}

fn disallowed_method() -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        "this path does not allow this method; the Allow header lists the methods that it does",
    )
}

/// A caught panic, which the panic hook has logged.
fn internal() -> Problem {
    Problem::new(
        Code::Internal,
        "internal error, see the agent's log; a lock that this request may have acquired is released \
         after ttlSeconds, retry then",
    )
}
