//! Streams of events: a lock that a connection holds, and what happens to a lease.
//!
//! It puts the agent's events into server-sent ones, and decides nothing. Before the first event is
//! known nothing is sent, so a refusal is a problem document as everywhere. Invariant: an event is
//! asked for only when the connection has taken the one before it (`serve` says when).

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
use super::{Api, Arrived, checks};
use crate::agent::{EventsError, Hold, LeaseEvent};
pub(super) use data::EventData;

/// The media type of server-sent events.
const EVENT_STREAM: &str = "text/event-stream";

/// Holds a lock for as long as the connection
///
/// Waits in line without a limit, and answers with server-sent events. The lock is held until the
/// client closes the connection, or dies: then it is released at once (a lead that others were told
/// of by an election's answer: when their time is over). No renewing is needed, and
/// the app may act for as long as the newest `validForMs` says, counted from when it sent this
/// request. There is no requestId: a repetition is a second caller.
///
/// The events: `waiting` at once when somebody else has the lock, and again as a sign of life;
/// `acquired`; then `heartbeat` at least every third of the session's TTL, and, when there is cause,
/// `at-risk`, `release-requested` and `lost`. What is refused while it waits is an event `error`,
/// whose data is a problem document. The stream ends after `lost` or `error`, and, without an event,
/// when the lease was released by DELETE.
///
/// A slow reader is not cut off. Events that it could not take are not kept for it; the next one
/// says what is true then.
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
    let hold = api.agent.hold(request, arrived).await?;
    Ok(of_hold(hold, connection))
}

/// Tells what happens to a lease
///
/// Server-sent events: a `heartbeat` at once and then at least every third of the session's TTL; and,
/// when there is cause, `at-risk`, `release-requested` and `lost`, as in hold. Each `validForMs`
/// counts from when the app sent this request. Listening is no sign of the app's life, only renewing
/// is, and the lease does not end with the connection. The stream ends after `lost`, and, without an
/// event, when the lease was released.
#[utoipa::path(
    get, operation_id = "followLease", path = "/v1/locks/{leaseId}/events", tag = "locks",
    params(("leaseId" = String, Path, description = "As acquire gave it")),
    responses((status = 200, description = "The data of the events, each a line of JSON",
        body = EventData, content_type = "text/event-stream")),
)]
pub(super) async fn of_lease(
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
    Ok(answer(events.map(frame), connection))
}

/// The events of a lease that is held by this connection.
pub(super) fn of_hold(hold: Hold, connection: Option<Extension<Connection>>) -> Response {
    let events = futures::stream::unfold(hold, |mut hold| async move {
        let event = hold.next().await?;
        Some((event, hold))
    });
    answer(events.map(frame), connection)
}

/// A stream of server-sent events, one at a time.
pub(super) fn answer(
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

/// One event as it goes over the wire. JSON has no line breaks in it, so its data is one line.
fn frame(event: LeaseEvent) -> String {
    if let LeaseEvent::Failed(error) = event {
        return format!(
            "event: error\ndata: {}\n\n",
            Problem::from(error).document()
        );
    }
    let Some(data) = EventData::of(&event) else {
        return String::new();
    };
    // Strings and numbers under names of ours are JSON.
    let text = serde_json::to_string(&data).unwrap_or_default();
    format!("event: {}\ndata: {text}\n\n", data.name())
}
