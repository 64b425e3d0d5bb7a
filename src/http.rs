//! The HTTP API that a sidecar serves to the apps of its pod.
//!
//! It translates: requests into questions to the agent, answers and refusals into JSON. It keeps
//! no state and decides nothing about locks. Invariants: the arrival of a request is taken before
//! its body is read, because what an app is told counts from there; every refusal is a problem
//! document; a request that is refused here never reached the store.

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

/// What may be set about the API.
#[derive(Clone, Debug, Default)]
pub struct HttpOptions {
    /// Names beside localhost that a Host header may have, without a port.
    pub allowed_hosts: Vec<String>,
}

/// When a request's head had been read.
#[derive(Clone, Copy, Debug)]
struct Arrived(Moment);

/// What every handler needs.
#[derive(Clone)]
struct Api {
    agent: Agent,
    allowed_hosts: Arc<[String]>,
}

impl Api {
    fn new(agent: Agent, options: HttpOptions) -> Self {
        Self {
            agent,
            allowed_hosts: options.allowed_hosts.into(),
        }
    }
}

/// The API of an agent.
pub fn router(agent: Agent, options: HttpOptions) -> Router {
    behind_the_guard(routes(), Api::new(agent, options))
}

/// The same for a Unix socket: who speaks there is known by the socket, whatever name it uses.
pub fn over_unix_socket(router: Router) -> Router {
    router.layer(Extension(guard::OverUnixSocket))
}

fn routes() -> Router<Api> {
    Router::new()
        .route("/v1/locks/acquire", post(locks::acquire))
        .route("/v1/locks/hold", post(events::hold))
        .route("/v1/locks/{leaseId}/events", get(events::of_lease))
        .route("/v1/locks/{leaseId}/renew", post(locks::renew))
        .route(
            "/v1/locks/{leaseId}",
            get(locks::get).delete(locks::release),
        )
        .route("/v1/locks", get(locks::list))
        .route("/v1/elections/{name}", get(elections::get))
        .route("/v1/elections/{name}/candidacy", post(elections::candidacy))
        .route("/v1/elections/{name}/events", get(elections::events))
        .route("/v1/fencing/verify", post(fencing::verify))
        .route("/openapi.json", get(openapi::openapi_json))
        // For who has no admin port. It is no part of the API, and its description does not have it.
        .route("/healthz", get(async || "ok\n"))
}

/// What every route is behind.
fn behind_the_guard(routes: Router<Api>, api: Api) -> Router {
    routes
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        // The last layer is the outermost.
        .layer(middleware::from_fn_with_state(
            api.clone(),
            guard::only_local,
        ))
        .layer(CatchPanicLayer::custom(|_panic| internal().into_response()))
        .layer(middleware::from_fn_with_state(api.clone(), note_arrival))
        .with_state(api)
}

async fn note_arrival(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Arrived(api.agent.now()));
    next.run(request).await
}

async fn not_found(uri: Uri) -> Problem {
    no_such_path(uri.path())
}

async fn method_not_allowed() -> Problem {
    wrong_method()
}

fn no_such_path(path: &str) -> Problem {
    Problem::new(
        Code::NotFound,
        format!("{path} not found; /openapi.json lists all paths"),
    )
}

fn wrong_method() -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        "this path does not allow this method; the Allow header lists the methods that it does",
    )
}

/// A panic was caught; the panic hook has logged what it was.
fn internal() -> Problem {
    Problem::new(
        Code::Internal,
        "internal error, see the agent's log; a lock that this request may have acquired is released \
         after ttlSeconds, retry then",
    )
}
