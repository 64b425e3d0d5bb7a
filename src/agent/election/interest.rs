//! Questions of apps about an election: with `--elect` the agent is a candidate only while an app asks.
//!
//! An app that leads asks at least once in each validity. The candidacy starts with the first question.
//! After two periods (the session TTL, two minutes at most) without a question the agent releases the
//! lead or removes its queue entry: the app was never started, hangs, crashed, or does not use the
//! election. A grant counts as a question, because its lease is recorded as told in full.
//! Invariant: the agent releases no lead that a reader may believe in. A reader's validity ends a period
//! after its question at the latest.

use std::time::Duration;

use crate::agent::api::Life;
use crate::agent::driver::Driver;
use crate::agent::release::release;
use crate::agent::state::State;
use crate::protocol::election::ElectionName;
use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::time::Moment;

/// The number of periods for which a question counts.
const PERIODS: u32 = 2;

/// Records a question about an election.
pub(super) fn note_question(driver: &Driver, election: &ElectionName) {
    let now = driver.now();
    let mut state = driver.state();
    let interests = &mut state.elections.interests;
    if let Some(interest) = interests.get_mut(election.resource()) {
        interest.asked_at = now;
        interest
            .lasts
            .send_if_modified(|lasts| !std::mem::replace(lasts, true));
    }
}

/// Ends the interest each time that no app asked for two periods, until the agent stops.
pub(super) async fn follow_interest(driver: Driver, election: ElectionName) {
    let resource = election.resource();
    let lasts = driver
        .state()
        .elections
        .interests
        .get(resource)
        .map(|interest| interest.lasts.subscribe());
    let Some(mut lasts) = lasts else {
        return;
    };
    while !driver.stop.is_cancelled() {
        tokio::select! {
            biased;
            () = driver.stop.cancelled() => return,
            // The agent keeps the other end.
            _lasts = lasts.wait_for(|lasts| *lasts) => {}
        }
        let period = driver.config.session_ttl.period();
        let ended = driver.with_state(|state| {
            // Read under the mutex: each question comes before this or after.
            let ended = end_interest(state, resource, driver.now(), period);
            if let Ok((_, Some(lease))) = &ended {
                // In the same step: a question at the same moment either keeps the lead or gets
                // "follower".
                driver.step(state, |core, cx| core.leases(cx).close(lease));
            }
            ended
        });
        let (asked_at, lease) = match ended {
            Ok(ended) => ended,
            Err(ends_at) => {
                driver.until_or_stop(ends_at).await;
                continue;
            }
        };
        let unasked = driver.now().since(asked_at).as_secs();
        tracing::info!(%election, idleSeconds = unasked, "campaign paused; no app polls it");
        if let Some(lease) = lease {
            // Its outcome has no reader.
            let _released = release(&driver, &lease).await;
        }
    }
}

/// Ends the interest in an election after two periods without a question. Returns when the last question
/// came, and the lead's lease, which is to be closed.
///
/// # Errors
/// When the interest may end, if it is too early.
fn end_interest(
    state: &State,
    resource: &Resource,
    now: Moment,
    period: Duration,
) -> Result<(Moment, Option<LeaseId>), Moment> {
    let held = state.core.own.held(resource);
    let lead = held.filter(|held| held.life == Life::Campaign);
    let Some(interest) = state.elections.interests.get(resource) else {
        return Ok((now, None));
    };
    let asked_at = interest.asked_at;
    let asked_until = asked_at.after(period * PERIODS);
    // Calls that name the lease are questions as well.
    let told_until = lead.map(|lead| lead.lease.told_until().after(period));
    let ends_at = told_until.map_or(asked_until, |told| told.max(asked_until));
    if now < ends_at {
        return Err(ends_at);
    }
    interest.lasts.send_replace(false);
    Ok((asked_at, lead.map(|lead| lead.lease.id.clone())))
}
