//! Faults on demand, for users' own tests: `leasehold dev --fault-api` and nothing else.
//!
//! An app's tests lose a lease, see its validity shrink, or find the store away, when they want
//! to. No sidecar has these routes: they need a store that fails on demand, and only `dev` makes
//! one. docs/dev.md says how to use them; the description of the API does not have them.

use std::time::Duration;

use axum::routing::post;
use axum::{Extension, Router};
use http::StatusCode;
use serde::Deserialize;
use serde_json::Number;

use super::body::JsonBody;
use super::error::{Code, Problem};
use super::{Api, HttpOptions, behind_the_guard, routes};
use crate::agent::Agent;
use crate::protocol::ids::LeaseId;
use crate::store::faulty::TimedFaults;

/// The longest that a fault may last.
const SECONDS_MAX: u64 = 3_600;

/// The API of an agent whose store fails on demand.
pub fn router_with_faults(agent: Agent, options: HttpOptions, faults: TimedFaults) -> Router {
    let api = Api::new(agent, options);
    let on_demand = Router::new()
        .route("/dev/faults/lose-lease", post(lose_lease))
        .route("/dev/faults/at-risk", post(at_risk))
        .route("/dev/faults/store-unavailable", post(store_unavailable))
        .route("/dev/faults/heal", post(heal))
        .layer(Extension(faults));
    behind_the_guard(routes().merge(on_demand), api)
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

/// The app hears 410 `lease_lost`, as when a person ended its grant.
async fn lose_lease(
    axum::extract::State(api): axum::extract::State<Api>,
    JsonBody(body): JsonBody<LoseBody>,
) -> Result<StatusCode, Problem> {
    api.agent.lose(&LeaseId::from(body.lease_id))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Renewals of the session fail: `validForMs` shrinks, and at the deadline every lease is lost.
async fn at_risk(
    Extension(faults): Extension<TimedFaults>,
    JsonBody(body): JsonBody<TimeBody>,
) -> Result<StatusCode, Problem> {
    faults.fail_renewals_for(time(&body)?);
    Ok(StatusCode::NO_CONTENT)
}

/// Nothing reaches the store.
async fn store_unavailable(
    Extension(faults): Extension<TimedFaults>,
    JsonBody(body): JsonBody<TimeBody>,
) -> Result<StatusCode, Problem> {
    faults.fail_everything_for(time(&body)?);
    Ok(StatusCode::NO_CONTENT)
}

/// All is well again. A lease that was lost stays lost.
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
