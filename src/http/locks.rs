//! The calls on locks and leases. Each handler checks, asks the agent and says what it answered.
//!
//! A client that hangs up drops the handler and nothing else: the agent goes on by itself, and
//! releases a grant that nobody awaits any more.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::{HeaderName, HeaderValue, StatusCode};

use super::body::{JsonBody, LeaseInPath, OptionalJsonBody, Parameters};
use super::dto::{AcquireBody, AcquiredDto, LeaseDto, ListQuery, LocksDto, PendingDto, RenewBody};
use super::error::Problem;
use super::{Api, Arrived, checks, explain};
use crate::agent::{Acquired, LeaseView, Released};

const FENCING_TOKEN: HeaderName = HeaderName::from_static("x-fencing-token");

/// Takes a lock, at once or after waiting in line
///
/// With `waitSeconds` the call is a long poll: its answer comes when the lock is had or the time
/// is up. Locks are handed on in the order in which pods queued.
///
/// The lock is the caller's for `validForMs`, counted from when it sent this request; renew it
/// after `renewAfterMs`. Send the fencing token with every write to what the lock guards, and
/// have it checked there: a lock that nobody fences is a polite suggestion. Locks are not
/// reentrant: a second acquire of a held lock is refused or waits, its holder's too.
#[utoipa::path(
    post, operation_id = "acquireLock", path = "/v1/locks/acquire", tag = "locks",
    request_body = AcquireBody,
    responses((status = 200, description = "The lock is the caller's", body = AcquiredDto,
        headers(("X-Fencing-Token" = u64, description = "The fencing token")))),
)]
pub(super) async fn acquire(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    JsonBody(body): JsonBody<AcquireBody>,
) -> Result<Response, Problem> {
    let request = checks::acquire(body, &api.agent.pod().name)?;
    let wait = request.wait;
    match api.agent.acquire(request, arrived).await? {
        Acquired::Granted { lease, replayed } => {
            let answer = Json(AcquiredDto::new(&lease, replayed));
            Ok((fencing_token(&lease), answer).into_response())
        }
        Acquired::Held {
            holder,
            queue_length,
            hint,
        } => Err(explain::lock_held(&holder, queue_length, hint, wait)),
    }
}

/// Tells the agent that the app lives
///
/// Local to the pod: it costs the API server nothing. `ttlSeconds` starts anew, and `validForMs`
/// says how long the app may act, counted from when it sent this request.
#[utoipa::path(
    post, operation_id = "renewLease", path = "/v1/locks/{leaseId}/renew", tag = "locks",
    params(("leaseId" = String, Path, description = "As acquire gave it")),
    request_body = Option<RenewBody>,
    responses((status = 200, description = "The lease goes on", body = LeaseDto,
        headers(("X-Fencing-Token" = u64, description = "The fencing token")))),
)]
pub(super) async fn renew(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    LeaseInPath(lease): LeaseInPath,
    OptionalJsonBody(body): OptionalJsonBody<RenewBody>,
) -> Result<Response, Problem> {
    let ttl = body.ttl_seconds.as_ref().map(checks::ttl).transpose()?;
    match api.agent.renew(&lease, ttl, arrived) {
        Ok(view) => Ok(lease_answer(&view)),
        Err(error) => Err(api.agent.explained(&lease, error).await.into()),
    }
}

/// Says what the app holds
///
/// Local to the pod. It is no sign of the app's life; only renewing is.
#[utoipa::path(
    get, operation_id = "getLease", path = "/v1/locks/{leaseId}", tag = "locks",
    params(("leaseId" = String, Path, description = "As acquire gave it")),
    responses((status = 200, description = "The lease", body = LeaseDto,
        headers(("X-Fencing-Token" = u64, description = "The fencing token")))),
)]
pub(super) async fn get(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    LeaseInPath(lease): LeaseInPath,
) -> Result<Response, Problem> {
    match api.agent.lease(&lease, arrived) {
        Ok(view) => Ok(lease_answer(&view)),
        Err(error) => Err(api.agent.explained(&lease, error).await.into()),
    }
}

/// Gives a lock back
///
/// The lease is over at once, whatever the answer; stop before sending this. Repeating it is no
/// error. A lease that was lost before is 410 `lease_lost`, also when the agent learns it only
/// now: then somebody else may have had the lock meanwhile.
///
/// A candidacy's lease is over for all who ask at once; who was told by `GET /v1/elections/{name}` that
/// this pod leads has its time, and the answer waits for that, two seconds at most. A lead that the
/// sidecar has by itself (`--elect`) is handed on at once: whoever sends this speaks for the pod.
#[utoipa::path(
    delete, operation_id = "releaseLease", path = "/v1/locks/{leaseId}", tag = "locks",
    params(("leaseId" = String, Path, description = "As acquire gave it")),
    responses(
        (status = 204, description = "Released, now or before"),
        (status = 202, description = "The lease is over, and the store has not confirmed it yet; \
            the agent goes on trying. Or it is the lead of an election that others were told of, and \
            their time is not over yet",
            body = PendingDto),
    ),
)]
pub(super) async fn release(
    State(api): State<Api>,
    LeaseInPath(lease): LeaseInPath,
) -> Result<Response, Problem> {
    Ok(match api.agent.release(&lease).await? {
        Released::Done => StatusCode::NO_CONTENT.into_response(),
        Released::Pending => {
            let pending = Json(PendingDto::new(lease.to_string()));
            (StatusCode::ACCEPTED, pending).into_response()
        }
    })
}

/// Lists the namespace's locks, as the store says now
#[utoipa::path(
    get, operation_id = "listLocks", path = "/v1/locks", tag = "locks",
    params(
        ("prefix" = Option<String>, Query, description = "Only resources that start with it",
            max_length = 512),
        ("limit" = Option<u32>, Query, description = "At most so many on a page; 100 unless said",
            minimum = 1, maximum = 500),
        ("continue" = Option<String>, Query, description = "As the page before gave it"),
    ),
    responses((status = 200, description = "Some of the locks", body = LocksDto)),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Parameters(query): Parameters<ListQuery>,
) -> Result<Json<LocksDto>, Problem> {
    let limit = checks::list_limit(&query)?;
    // An empty `continue` is what a client sends that always sends it.
    let next = query.next.as_deref().filter(|next| !next.is_empty());
    let page = api.agent.locks(&query.prefix, limit, next).await?;
    Ok(Json(page.into()))
}

fn lease_answer(lease: &LeaseView) -> Response {
    (fencing_token(lease), Json(LeaseDto::from(lease))).into_response()
}

fn fencing_token(lease: &LeaseView) -> [(HeaderName, HeaderValue); 1] {
    [(FENCING_TOKEN, HeaderValue::from(lease.token.get()))]
}
