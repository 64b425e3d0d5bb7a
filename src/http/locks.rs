//! Handlers of locks and leases: each one validates, calls the agent and converts the result.
//!
//! If the client disconnects, only the handler is dropped. The agent finishes its work, and
//! releases a grant without a caller.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::{HeaderName, HeaderValue, StatusCode};

use super::body::{JsonBody, LeaseInPath, OptionalJsonBody, Parameters};
use super::dto::{
    AcquireBody, AcquiredDto, CompleteBody, LeaseDto, ListQuery, LocksDto, ReleasePendingDto,
    RenewBody,
};
use super::error::Problem;
use super::held::Refusal;
use super::{Api, Arrived, checks};
use crate::agent::{Acquired, LeaseView, Released};

const FENCING_TOKEN: HeaderName = HeaderName::from_static("x-fencing-token");

/// Acquires a lock, immediately or after waiting in the queue
///
/// With `waitSeconds` the call is a long poll: the response comes when the lock is acquired or the time
/// has passed. Locks are handed over in the order in which pods were queued.
///
/// The lock is valid for `validForMs`, counted from when the caller sent this request; renew it after
/// `renewAfterMs`. Send the fencing token with every write to the guarded resource, which must reject
/// smaller tokens: without fencing, a lock is only advisory. Locks are not reentrant: a second acquire
/// of a held lock is refused or waits, also for its holder.
#[utoipa::path(
    post, operation_id = "acquireLock", path = "/v1/locks/acquire", tag = "locks",
    request_body = AcquireBody,
    responses((status = 200, description = "The lock was acquired", body = AcquiredDto,
        headers(("X-Fencing-Token" = u64, description = "The fencing token")))),
)]
pub(super) async fn acquire(
    State(api): State<Api>,
    Extension(Arrived(arrived)): Extension<Arrived>,
    JsonBody(body): JsonBody<AcquireBody>,
) -> Result<Response, Problem> {
    let request = checks::acquire(body, &api.agent.pod().name)?;
    let (resource, waited) = (request.resource.clone(), request.wait);
    match api.agent.acquire(request, arrived).await? {
        Acquired::Granted { lease, replayed } => {
            let answer = Json(AcquiredDto::new(&lease, replayed));
            Ok((fencing_token(&lease), answer).into_response())
        }
        Acquired::Held(held) => Err(Refusal {
            resource: &resource,
            held: &held,
            waited,
            now: api.agent.now(),
            namespace: api.namespace.as_deref(),
        }
        .problem()),
    }
}

/// Renews a lease
///
/// Local to the pod, without a request to the API server. `ttlSeconds` starts again, and the app may
/// act for `validForMs`, counted from when it sent this request.
#[utoipa::path(
    post, operation_id = "renewLease", path = "/v1/locks/{leaseId}/renew", tag = "locks",
    params(("leaseId" = String, Path, description = "The leaseId that acquire returned")),
    request_body = Option<RenewBody>,
    responses((status = 200, description = "The renewed lease", body = LeaseDto,
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

/// Returns a lease
///
/// Local to the pod. This call does not renew the lease.
#[utoipa::path(
    get, operation_id = "getLease", path = "/v1/locks/{leaseId}", tag = "locks",
    params(("leaseId" = String, Path, description = "The leaseId that acquire returned")),
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

/// Releases a lock
///
/// The lease ends immediately, whatever the response; stop the guarded work before this call. Repeating
/// it is not an error. A lease that was lost before is 410 `lease_lost`, also if the agent detects the
/// loss only now: another holder may have had the lock in the meantime.
///
/// If getElection returned the lead of a candidacy to other callers, the response waits until their
/// `validForMs` has passed, two seconds at most. The lead of a sidecar with `--elect` is handed over
/// immediately.
#[utoipa::path(
    delete, operation_id = "releaseLease", path = "/v1/locks/{leaseId}", tag = "locks",
    params(("leaseId" = String, Path, description = "The leaseId that acquire returned")),
    responses(
        (status = 204, description = "Released, now or earlier"),
        (status = 202, description = "The lease has ended. The store has not confirmed the \
            release yet, and the agent retries; or the lead of an election was returned to other \
            callers, and their validForMs has not passed yet",
            body = ReleasePendingDto),
    ),
)]
pub(super) async fn release(
    State(api): State<Api>,
    LeaseInPath(lease): LeaseInPath,
) -> Result<Response, Problem> {
    Ok(match api.agent.release(&lease).await? {
        Released::Done => StatusCode::NO_CONTENT.into_response(),
        Released::Pending => {
            let pending = Json(ReleasePendingDto::new(lease.to_string()));
            (StatusCode::ACCEPTED, pending).into_response()
        }
    })
}

/// Records that guarded work has succeeded
///
/// The key is written into the lock while the lease holds it. Each later response of acquire has the last
/// 32 keys in `completed`, so that its caller can skip work that was done. A free lock with keys is kept
/// for a week (or `spec.retainSeconds`). A key that is recorded already keeps its record.
///
/// Without the response 204 the key may be recorded, or not. Repeat the call while the lease is valid.
#[utoipa::path(
    post, operation_id = "completeWork", path = "/v1/locks/{leaseId}/complete", tag = "locks",
    params(("leaseId" = String, Path, description = "The leaseId that acquire returned")),
    request_body = CompleteBody,
    responses((status = 204, description = "Recorded, now or earlier")),
)]
pub(super) async fn complete(
    State(api): State<Api>,
    LeaseInPath(lease): LeaseInPath,
    JsonBody(body): JsonBody<CompleteBody>,
) -> Result<StatusCode, Problem> {
    let key = checks::completion_key(&body.key)?;
    api.agent.complete(&lease, &key).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the locks of the namespace
#[utoipa::path(
    get, operation_id = "listLocks", path = "/v1/locks", tag = "locks",
    params(
        ("prefix" = Option<String>, Query, description = "Only resources with this prefix",
            max_length = 512),
        ("limit" = Option<u32>, Query, description = "The maximum number per page; default: 100",
            minimum = 1, maximum = 500),
        ("continue" = Option<String>, Query, description = "The `continue` of the previous page"),
    ),
    responses((status = 200, description = "One page of locks", body = LocksDto)),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Parameters(query): Parameters<ListQuery>,
) -> Result<Json<LocksDto>, Problem> {
    let limit = checks::list_limit(&query)?;
    // Some clients always send `continue`, and leave it empty for the first page.
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
