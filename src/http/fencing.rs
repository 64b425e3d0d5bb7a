//! Checks fencing tokens, for a guarded resource that cannot store the highest token itself (like
//! Chubby's `CheckSequencer`).

use axum::Json;
use axum::extract::State;

use super::body::JsonBody;
use super::dto::{VerifiedDto, VerifyBody};
use super::error::Problem;
use super::{Api, checks, explain};
use crate::agent::Verified;

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
