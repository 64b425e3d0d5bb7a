//! Elections: who leads, its events, and running for it by a connection.
//!
//! It translates, as everything here does. What an app is told of its own lead counts from when it
//! sent its request; of others' it is told without validity, because nobody here can promise it.

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

/// The election that the path names.
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

/// Says who leads
///
/// `leader` is true only while this very pod leads, by its sidecar's own clock; then the app may act
/// as the leader for `validForMs`, counted from when it sent this request. Ask as often as you like:
/// it is answered from memory, and of other pods' leads the API server is asked once a second at
/// most. That is waited for for 100 ms, or a second where nothing is known from before; while it is
/// away, `leader` is still right, and `ageMs` says how old the rest is.
///
/// To ask is to run: where the sidecar was told to (`--elect`), this pod is a candidate from the first
/// question on, until none has come for two session TTLs. So the first answer is seldom yes.
///
/// A lead that an app holds (a candidacy) is told for a tenth of the session's TTL (at least a second):
/// so soon after its connection ended, or it was released, the next one leads. One that the sidecar
/// holds by itself (`--elect`) is told to its deadline.
#[utoipa::path(
    get, operation_id = "getElection", path = "/v1/elections/{name}", tag = "elections",
    params(("name" = String, Path, description = "A DNS label of at most 56 characters")),
    responses((status = 200, description = "Who leads", body = ElectionDto)),
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

/// Tells who leads, and each change
///
/// Server-sent events: `leader` when this pod leads and `follower` when it does not, with the same
/// data as the question. The first comes at once, then one with every change and as a sign of life,
/// in time for who acts by it. Each `validForMs` counts from when the app sent this request. A change
/// between other pods is heard of within a second, by a candidate within a third of the session's
/// TTL. The stream ends when the sidecar stops.
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
    Ok(super::events::answer(events, connection))
}

/// Runs for an election for as long as the connection
///
/// As hold, on the resource `election:<name>`: it waits in line without a limit, leads from
/// `acquired` on, and hands the lead on when the connection ends, or its app dies, or it is released. If
/// others were told of the lead by `GET`, the next one leads when their time is over.
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
    let hold = api.agent.hold(request, arrived).await?;
    Ok(super::events::of_hold(hold, connection))
}
