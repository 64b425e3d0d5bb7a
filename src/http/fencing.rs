//! Asking whether a fencing token is current, for a guard that cannot keep the highest token
//! itself (Chubby's `CheckSequencer`).

use axum::Json;
use axum::extract::State;

use super::body::JsonBody;
use super::dto::{VerifiedDto, VerifyBody};
use super::error::Problem;
use super::{Api, checks, explain};
use crate::agent::Verified;

/// Says whether a fencing token is current, as the store says now
///
/// The answer may be old when it arrives: what a guard wants is to keep the highest token that
/// it saw and to refuse a smaller one. This call is for where that cannot be done.
#[utoipa::path(
    post, operation_id = "verifyToken", path = "/v1/fencing/verify", tag = "fencing",
    request_body = VerifyBody,
    responses((status = 200, description = "It belongs to the current grant", body = VerifiedDto)),
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
