//! Elections: the leader, its events, and candidacies of connections.
//!
//! It only converts. The validity of the own lead counts from when the app sent its request. Other
//! leaders are returned without a validity, because only their own agent can promise one.

mod data;

use axum::Extension;
use axum::Json;
use axum::extract::{FromRequestParts, Path, State};
use axum::response::{IntoResponse as _, Response};
use http::header::CACHE_CONTROL;
use http::request::Parts;

use super::body::OptionalJsonBody;
use super::dto::CandidacyBody;
use super::error::{Code, Problem};
use super::events::EventData;
use super::serve::Connection;
use super::{Api, Arrived, checks};
use crate::protocol::election::ElectionName;
use data::ElectionDto;

/// The election in the path.
pub(super) struct ElectionInPath(ElectionName);

impl<S: Send + Sync> FromRequestParts<S> for ElectionInPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) =
            path.map_err(|rejection| Problem::new(Code::ElectionInvalid, rejection.body_text()))?;
        checks::election(&name).map(Self)
    }
}

/// Returns the leader of an election
///
/// `leader` is true only while this pod leads, by its sidecar's own clock. The app may then act as the
/// leader for `validForMs`, counted from when it sent this request. Polling is cheap: the response comes
/// from memory, and the API server is read at most once a second. A response waits up to 100 ms for
/// that read, or a second if nothing is cached. While the API server is unavailable, `leader` is still
/// correct, and `ageMs` is the age of the other fields.
///
/// If the sidecar runs with `--elect`, this call also starts the candidacy of this pod. It ends when no
/// request has come for two session TTLs, four minutes at most. So the first response is rarely `true`.
///
/// The lead of a candidacy is valid for a tenth of the session's TTL, at least a second: that soon after
/// its connection ends, or its release, the next candidate leads. The lead of a sidecar with `--elect`
/// is valid until its deadline.
#[utoipa::path(
    get, operation_id = "getElection", path = "/v1/elections/{name}", tag = "elections",
    params(("name" = String, Path, description = "A DNS label of at most 56 characters")),
    responses((status = 200, description = "The leader", body = ElectionDto)),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    ElectionInPath(election): ElectionInPath,
) -> Result<Response, Problem> {
    let view = api.agent.election(&election, arrived).await?;
    let headers = [(CACHE_CONTROL, "no-store")];
    Ok((headers, Json(ElectionDto::from(&view))).into_response())
}

/// Streams the leader of an election
///
/// Server-sent events: `leader` when this pod leads and `follower` when it does not, with the data of
/// getElection. The first event is immediate. Another follows each change, and before `validForMs` of
/// the last one passes. Each `validForMs` counts from when the app sent this request. A change between
/// other pods is observed within a second, by a candidate within a third of the session's TTL. The
/// stream ends when the sidecar stops.
#[utoipa::path(
    get, operation_id = "followElection", path = "/v1/elections/{name}/events", tag = "elections",
    params(("name" = String, Path, description = "A DNS label of at most 56 characters")),
    responses((status = 200, description = "The data of the events, each a line of JSON",
        body = ElectionDto, content_type = "text/event-stream")),
)]
pub(super) async fn events(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    connection: Option<Extension<Connection>>,
    ElectionInPath(election): ElectionInPath,
) -> Result<Response, Problem> {
    let events = api.agent.election_events(&election, arrived).await?;
    let events = futures::stream::unfold(events, |mut events| async move {
        let event = events.next().await?;
        Some((ElectionDto::from(&event.view).frame(), events))
    });
    Ok(super::events::stream_response(events, connection))
}

/// Runs for an election for as long as the connection
///
/// Like holdLock, on the resource `election:<name>`: it is queued without a time limit, leads from
/// `acquired` on, and hands the lead over when the connection ends, the app crashes, or the lease is
/// released. If getElection returned the lead to other callers, the next candidate leads when their
/// `validForMs` has passed.
#[utoipa::path(
    post, operation_id = "runForElection", path = "/v1/elections/{name}/candidacy",
    tag = "elections",
    params(("name" = String, Path, description = "A DNS label of at most 56 characters")),
    request_body = Option<CandidacyBody>,
    responses((status = 200, description = "The data of the events, each a line of JSON",
        body = EventData, content_type = "text/event-stream")),
)]
pub(super) async fn candidacy(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    connection: Option<Extension<Connection>>,
    ElectionInPath(election): ElectionInPath,
    OptionalJsonBody(body): OptionalJsonBody<CandidacyBody>,
) -> Result<Response, Problem> {
    let request = checks::candidacy(&election, body, &api.agent.pod().name)?;
    super::events::hold_events(&api, request, arrived, connection).await
}
