//! Event streams: a lock that a connection holds, and the events of a lease.
//!
//! It converts the agent's events into server-sent events, and decides nothing. Nothing is sent
//! before the first event is known, so a refusal is a normal problem document. Invariant: the next
//! event is requested only when the connection has taken the previous one (see `serve`).

mod data;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::{Stream, StreamExt as _};
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use super::body::{JsonBody, LeaseInPath};
use super::dto::HoldBody;
use super::error::Problem;
use super::serve::{Connection, paced};
use super::{Api, Arrived, checks, explain};
use crate::agent::{AcquireRequest, EventsError, LeaseEvent};
use crate::protocol::time::Moment;
pub(super) use data::EventData;

/// The media type of server-sent events.
const EVENT_STREAM: &str = "text/event-stream";

/// Holds a lock for as long as the connection
///
/// The request is queued for `waitSeconds`, or without a time limit if that is absent. The response is a
/// stream of server-sent events. The lock is held until the client closes the connection or crashes, and
/// is then released immediately. (A lead that getElection returned to other callers is released when their
/// `validForMs` has passed.) No renewals are needed: the app may act for the newest `validForMs`, counted
/// from when it sent this request. This call has no requestId: a repeated request is another caller.
///
/// Events: `waiting`, immediately if the lock is held and again as a keep-alive; `acquired`; then
/// `heartbeat` at least every third of the session's TTL, and every 40 s; and, if they apply, `at-risk`,
/// `release-requested` and `lost`. An error while waiting is an event `error`, whose data is a problem
/// document: `lock_held` if `waitSeconds` have passed. If they pass before the stream begins, as they
/// always do with 0, the response is that document, with status 409. The stream ends after `lost` or
/// `error`, and without an event when the lease was released by DELETE.
///
/// A slow reader is not disconnected. Events that it does not read in time are dropped; the next event
/// has the current state.
#[utoipa::path(
    post, operation_id = "holdLock", path = "/v1/locks/hold", tag = "locks",
    request_body = HoldBody,
    responses((status = 200, description = "The data of the events, each a line of JSON",
        body = EventData, content_type = "text/event-stream")),
)]
pub(super) async fn hold(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    connection: Option<Extension<Connection>>,
    JsonBody(body): JsonBody<HoldBody>,
) -> Result<Response, Problem> {
    let request = checks::hold(body, &api.agent.pod().name)?;
    hold_events(&api, request, arrived, connection).await
}

/// Streams the events of a lease
///
/// Server-sent events: a `heartbeat` immediately and then at least every third of the session's TTL,
/// and every 40 s; and, if they apply, `at-risk`, `release-requested` and `lost`, as in holdLock. Each `validForMs`
/// counts from when the app sent this request. Reading the stream does not renew the lease, and the
/// lease does not end with the connection. The stream ends after `lost`, and without an event when the
/// lease was released.
#[utoipa::path(
    get, operation_id = "followLease", path = "/v1/locks/{leaseId}/events", tag = "locks",
    params(("leaseId" = String, Path, description = "The leaseId that acquire returned")),
    responses((status = 200, description = "The data of the events, each a line of JSON",
        body = EventData, content_type = "text/event-stream")),
)]
pub(super) async fn lease_events(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    connection: Option<Extension<Connection>>,
    LeaseInPath(lease): LeaseInPath,
) -> Result<Response, Problem> {
    let events = match api.agent.events(&lease, arrived) {
        Err(EventsError::Lease(error)) => {
            return Err(api.agent.explained(&lease, error).await.into());
        }
        events => events?,
    };
    let events = futures::stream::unfold(events, |mut events| async move {
        let event = events.next().await?;
        Some((event, events))
    });
    // None of these events is a refusal, which names the namespace.
    let frames = events.map(|event| frame(event, None));
    Ok(stream_response(frames, connection))
}

/// Requests a lock for this connection. Returns the events.
pub(super) async fn hold_events(
    api: &Api,
    request: AcquireRequest,
    arrived: Moment,
    connection: Option<Extension<Connection>>,
) -> Result<Response, Problem> {
    let namespace = api.namespace.clone();
    let hold = api.agent.hold(request, arrived).await;
    let hold = hold.map_err(|error| explain::hold_ended(error, namespace.as_deref()))?;
    let events = futures::stream::unfold(hold, |mut hold| async move {
        let event = hold.next().await?;
        Some((event, hold))
    });
    let frames = events.map(move |event| frame(event, namespace.as_deref()));
    Ok(stream_response(frames, connection))
}

/// Returns a response that streams server-sent events, one at a time.
pub(super) fn stream_response(
    events: impl Stream<Item = String> + Send + 'static,
    connection: Option<Extension<Connection>>,
) -> Response {
    let connection = connection.map(|Extension(connection)| connection);
    let body = Body::from_stream(paced(events, connection));
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM)),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, body).into_response()
}

/// Encodes one event. JSON has no line breaks, so its data is one line.
fn frame(event: LeaseEvent, namespace: Option<&str>) -> String {
    if let LeaseEvent::Failed(error) = event {
        let problem = explain::hold_ended(error, namespace);
        return format!("event: error\ndata: {}\n\n", problem.document());
    }
    let Some(data) = EventData::of(&event) else {
        return String::new();
    };
    // Strings and numbers with constant field names are always valid JSON.
    let text = serde_json::to_string(&data).unwrap_or_default();
    format!("event: {}\ndata: {text}\n\n", data.name())
}
