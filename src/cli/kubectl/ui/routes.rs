//! The requests of the page.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::guard::{Access, require_token};
use super::live::{Cluster, Live};
use super::{files, lock};
use crate::cli::kubectl::failure::Failure;
use crate::kubectl::page::hour::Observed;
use crate::kubectl::page::rows::{self, Rows};
use crate::kubectl::page::waits::{self, Graph};
use crate::text::escape;

/// Why a request fails, with what to do.
#[derive(Debug)]
pub(super) struct Problem(StatusCode, String);

impl Problem {
    pub(super) fn new(code: StatusCode, why: impl Into<String>) -> Self {
        Self(code, why.into())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(json!({"error": escape(&self.1)}))).into_response()
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let code = match &failure {
            Failure::Forbidden { .. } => StatusCode::FORBIDDEN,
            Failure::NotFound(_) => StatusCode::NOT_FOUND,
            Failure::Refused { reason, .. } if reason == "Invalid" => StatusCode::BAD_REQUEST,
            Failure::Usage(_) => StatusCode::BAD_REQUEST,
            _ => StatusCode::BAD_GATEWAY,
        };
        Self(code, failure.words())
    }
}

/// An answer with the state of the cluster.
#[derive(Debug, Serialize)]
pub(super) struct Answer<T> {
    pub(super) cluster: Cluster,
    #[serde(flatten)]
    pub(super) body: T,
}

/// Returns the page and its requests.
pub(super) fn router(live: Arc<Live>, access: Arc<Access>) -> Router {
    let enter = {
        let access = access.clone();
        async move |Json(body): Json<Enter>| {
            let token = access.enter(&body.secret)?;
            Ok::<_, Problem>(Json(json!({"token": token})))
        }
    };
    let router = Router::new()
        .route("/api/enter", post(enter))
        .route("/api/locks", get(locks))
        .route("/api/locks/{namespace}/{name}", get(lock::show))
        .route("/api/locks/{namespace}/{name}/release", post(lock::release))
        .route(
            "/api/locks/{namespace}/{name}/release/{lease}",
            get(lock::released),
        )
        .route("/api/waits", get(waits))
        .route("/api/hour", get(hour));
    files::add(router)
        .layer(from_fn_with_state(access, require_token))
        .with_state(live)
}

#[derive(Debug, Deserialize)]
struct Enter {
    secret: String,
}

async fn locks(
    State(live): State<Arc<Live>>,
    Query(query): Query<rows::Query>,
) -> Json<Answer<Rows>> {
    let seen = live.seen();
    Json(Answer {
        cluster: live.cluster(&seen),
        body: rows::rows(&seen.world, &query, live.namespace.is_none()),
    })
}

async fn waits(State(live): State<Arc<Live>>) -> Json<Answer<Graph>> {
    let seen = live.seen();
    Json(Answer {
        cluster: live.cluster(&seen),
        body: waits::graph(&seen.world),
    })
}

async fn hour(State(live): State<Arc<Live>>) -> Json<Answer<Observed>> {
    let seen = live.seen();
    Json(Answer {
        cluster: live.cluster(&seen),
        body: seen.hour.observed(),
    })
}

/// Returns an answer that has no more than this.
pub(super) fn answer(live: &Live, body: Value) -> Json<Answer<Value>> {
    let cluster = live.cluster(&live.seen());
    Json(Answer { cluster, body })
}
