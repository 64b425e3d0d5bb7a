//! Releases leases, and explains why one has ended. The core decides.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::protocol::ids::LeaseId;
use crate::protocol::lease::Loss;

use super::api::{LeaseError, Released};
use super::core::effect::Reply;
use super::core::history::End;
use super::core::leases::EndedBy;
use super::driver::Driver;
use super::state::State;

/// How long the app waits for the store before the answer is `Pending`.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Releases a lease for its app, and waits for the outcome.
pub(super) async fn release(driver: &Driver, lease: &LeaseId) -> Result<Released, LeaseError> {
    let (_, ended) = end(driver, lease, EndedBy::App);
    // In time or not, the state says what is known.
    tokio::select! {
        biased;
        _ended = tokio::time::timeout(ANSWER_LIMIT, ended) => {}
        // A stopped agent leaves the lease to its readers and to its session.
        () = driver.stop.cancelled() => {}
    }
    let error = {
        let state = driver.state();
        match state.core.history.end(lease) {
            Some(End::Released) => return Ok(Released::Done),
            Some(End::Releasing) => return Ok(Released::Pending),
            Some(End::Lost(loss)) => LeaseError::Lost(loss),
            None if state.core.own.lease(lease).is_some() => return Ok(Released::Pending),
            None => LeaseError::Unknown,
        }
    };
    Err(explained(driver, lease, error).await)
}

/// Releases the lead of a campaign because a release request asks for it, once no app was promised it
/// any longer. Returns when the lease has ended, for whatever reason, or the agent stops.
pub(super) async fn resign(driver: &Driver, lease: &LeaseId) {
    // It has begun already, or the lease has ended, where this finds nothing.
    let _ended = end(driver, lease, EndedBy::Request);
    loop {
        let mut ended = pin!(driver.something_ended.notified());
        // Before the state is read: an end in between is not missed.
        ended.as_mut().enable();
        if driver.state().core.own.lease(lease).is_none() {
            return;
        }
        tokio::select! {
            biased;
            () = driver.stop.cancelled() => return,
            () = ended => {}
        }
    }
}

/// Ends a lease whose connection ended. One that is over already needs no end.
pub(super) fn release_hung_up(driver: &Driver, lease: &LeaseId) {
    let has_begun = driver.with_state(|state| {
        // The end of this process closes connections whose apps go on.
        !state.has_left && end_in(driver, state, lease, EndedBy::App).0
    });
    if has_begun {
        tracing::info!(leaseId = %lease, "connection closed; lease released");
    }
}

/// Ends a lease. Returns whether that has begun now, and what receives the answer when it is done.
pub(super) fn end(
    driver: &Driver,
    lease: &LeaseId,
    by: EndedBy,
) -> (bool, oneshot::Receiver<Reply>) {
    driver.with_state(|state| end_in(driver, state, lease, by))
}

fn end_in(
    driver: &Driver,
    state: &mut State,
    lease: &LeaseId,
    by: EndedBy,
) -> (bool, oneshot::Receiver<Reply>) {
    let (request, ended) = state.expect_reply();
    let has_begun = driver.step(state, |core, cx| core.leases(cx).end(lease, by, request));
    (has_begun, ended)
}

/// Why a lease is over, as it may be told: where that is being looked up, when it is known.
pub(super) async fn explained(driver: &Driver, lease: &LeaseId, error: LeaseError) -> LeaseError {
    loop {
        let ended = driver.something_ended.notified();
        {
            let state = driver.state();
            if error != LeaseError::Lost(Loss::GrantGone) || !state.core.own.is_unexplained(lease) {
                return match (error, state.core.history.end(lease)) {
                    (LeaseError::Lost(Loss::GrantGone), Some(End::Lost(loss))) => {
                        LeaseError::Lost(loss)
                    }
                    _ => error,
                };
            }
        }
        ended.await;
    }
}
