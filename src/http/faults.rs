//! Faults on demand, for users' own tests with `leasehold dev --fault-api`.
//!
//! Tests of an app can lose a lease, let its validity shrink, or make the store unavailable.
//! Sidecars do not have these routes: they need a store that injects faults, which only `dev`
//! creates. docs/dev.md describes them; the OpenAPI description does not.

use std::time::Duration;

use axum::routing::post;
use axum::{Extension, Router};
use http::StatusCode;
use serde::Deserialize;
use serde_json::Number;

use super::body::JsonBody;
use super::error::{Code, Problem};
use super::{Api, HttpOptions, routes, with_middleware};
use crate::agent::Agent;
use crate::protocol::ids::LeaseId;
use crate::store::faulty::TimedFaults;

/// The maximum duration of a fault.
const SECONDS_MAX: u64 = 3_600;

/// Returns the API of an agent whose store injects faults.
pub fn router_with_faults(agent: Agent, options: HttpOptions, faults: TimedFaults) -> Router {
    let api = Api::new(agent, options);
    let on_demand = Router::new()
        .route("/dev/faults/lose-lease", post(lose_lease))
        .route("/dev/faults/at-risk", post(at_risk))
        .route("/dev/faults/store-unavailable", post(store_unavailable))
        .route("/dev/faults/heal", post(heal))
        .layer(Extension(faults));
    with_middleware(routes().merge(on_demand), api)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LoseBody {
    lease_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TimeBody {
    seconds: Number,
}

/// The app gets 410 `lease_lost`, as after a force release.
async fn lose_lease(
    axum::extract::State(api): axum::extract::State<Api>,
    JsonBody(body): JsonBody<LoseBody>,
) -> Result<StatusCode, Problem> {
    api.agent.lose(&LeaseId::from(body.lease_id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Renewals of the session fail: `validForMs` shrinks, and all leases are lost at the deadline.
async fn at_risk(
    Extension(faults): Extension<TimedFaults>,
    JsonBody(body): JsonBody<TimeBody>,
) -> Result<StatusCode, Problem> {
    faults.fail_renewals_for(time(&body)?);
    Ok(StatusCode::NO_CONTENT)
}

/// No call reaches the store.
async fn store_unavailable(
    Extension(faults): Extension<TimedFaults>,
    JsonBody(body): JsonBody<TimeBody>,
) -> Result<StatusCode, Problem> {
    faults.fail_everything_for(time(&body)?);
    Ok(StatusCode::NO_CONTENT)
}

/// Ends all faults. A lost lease stays lost.
async fn heal(Extension(faults): Extension<TimedFaults>) -> StatusCode {
    faults.heal();
    StatusCode::NO_CONTENT
}

fn time(body: &TimeBody) -> Result<Duration, Problem> {
    match body.seconds.as_u64() {
        Some(seconds @ 1..=SECONDS_MAX) => Ok(Duration::from_secs(seconds)),
        _ => Err(Problem::new(
            Code::InvalidRequest,
            format!(
                "seconds is {}; send a whole number from 1 to {SECONDS_MAX}",
                body.seconds
            ),
        )),
    }
}
