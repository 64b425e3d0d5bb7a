//! Checks fencing tokens, for a guarded resource that cannot store the highest token itself (like
//! Chubby's `CheckSequencer`). Accepts reports of those that refused a stale one.

use axum::Json;
use axum::extract::State;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::body::JsonBody;
use super::dto::{
    RefusalBody, ReportedDto, VerifiedBatchDto, VerifiedDto, VerifiedTokenDto, VerifyBatchBody,
    VerifyBody,
};
use super::error::{Code, Problem};
use super::{Api, checks, explain};
use crate::agent::Verified;
use crate::protocol::ids::Resource;
use crate::protocol::token::Token;

/// How many reads of the API server a batch has in progress.
const READS_AT_ONCE: usize = 10;

/// Checks whether a fencing token is current
///
/// The response may be outdated when it arrives. Prefer to store the highest token beside the guarded
/// resource and to reject smaller ones; use this call where that is not possible.
#[utoipa::path(
    post, operation_id = "verifyToken", path = "/v1/fencing/verify", tag = "fencing",
    request_body = VerifyBody,
    responses((status = 200, description = "The token belongs to the current grant", body = VerifiedDto)),
)]
pub(super) async fn verify(
    State(api): State<Api>,
    JsonBody(body): JsonBody<VerifyBody>,
) -> Result<Json<VerifiedDto>, Problem> {
    let resource = checks::resource(&body.resource)?;
    let token = checks::token(&body.fencing_token)?;
    match api.agent.verify(&resource, token).await? {
        Verified::Current { exact } => Ok(Json(VerifiedDto {
            current: true,
            exact,
        })),
        Verified::Stale { latest } => Err(explain::stale_token(latest)),
        Verified::Unknown { latest } => Err(explain::unknown_token(latest)),
    }
}

/// Checks fencing tokens of several resources
///
/// The response is one result for each token, in the same order. An error means that nothing is known
/// about any of them. It costs one read of the API server for each token.
#[utoipa::path(
    post, operation_id = "verifyTokens", path = "/v1/fencing/verify-batch", tag = "fencing",
    request_body = VerifyBatchBody,
    responses((status = 200, description = "What is known about each token", body = VerifiedBatchDto)),
)]
pub(super) async fn verify_batch(
    State(api): State<Api>,
    JsonBody(body): JsonBody<VerifyBatchBody>,
) -> Result<Json<VerifiedBatchDto>, Problem> {
    let tokens = checks::tokens(&body.tokens)?.into_iter().enumerate();
    let results = stream::iter(tokens)
        .map(async |(index, (resource, token))| {
            let verified = api.agent.verify(&resource, token).await;
            let verified =
                verified.map_err(|error| Problem::from(error).of(&format!("tokens[{index}]")))?;
            Ok::<_, Problem>(result(&resource, token, verified))
        })
        .buffered(READS_AT_ONCE);
    let results = results.try_collect().await?;
    Ok(Json(VerifiedBatchDto { results }))
}

/// Reports a refused write
///
/// A write that a guarded resource refused, because its token is stale, is the only proof that a worker did not stop
/// in time. The agent counts it in `leasehold_refused_writes_total`, if the token is stale, and writes an Event
/// `StaleWriteRefused` about the lock, if it has the right to.
#[utoipa::path(
    post, operation_id = "reportRefusal", path = "/v1/fencing/refusals", tag = "fencing",
    request_body = RefusalBody,
    responses((status = 200, description = "The report was counted", body = ReportedDto)),
)]
pub(super) async fn report(
    State(api): State<Api>,
    JsonBody(body): JsonBody<RefusalBody>,
) -> Result<Json<ReportedDto>, Problem> {
    let reported = api.agent.report_refusal(checks::refusal(body)?).await?;
    let detail = explain::missing_event(&reported.event);
    Ok(Json(ReportedDto {
        latest_fencing_token: reported.latest.get(),
        has_event: detail.is_none(),
        detail,
    }))
}

fn result(resource: &Resource, token: Token, verified: Verified) -> VerifiedTokenDto {
    let (exact, refusal) = match verified {
        Verified::Current { exact } => (Some(exact), None),
        Verified::Stale { latest } => (None, Some((Code::StaleToken, latest))),
        Verified::Unknown { latest } => (None, Some((Code::UnknownToken, latest))),
    };
    VerifiedTokenDto {
        resource: resource.to_string(),
        fencing_token: token.get(),
        current: exact.is_some(),
        exact,
        code: refusal.map(|(code, _)| code.meaning().name),
        latest_fencing_token: refusal.map(|(_, latest)| latest.get()),
    }
}
