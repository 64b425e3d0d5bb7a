//! What apps ask of their leases: to renew, read or release them. The core decides.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::protocol::ids::LeaseId;
use crate::protocol::lease::Loss;
use crate::protocol::time::Moment;

use super::acquire::Answered;
use super::core::answers;
use super::core::history::End;
use super::core::leases::EndedBy;
use super::{Agent, LeaseError, LeaseView, Released};

/// How long the app waits for the store before the answer is `Pending`.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

impl Agent {
    /// Renews a lease: the app lives, and is told how long it may go on. With `ttl` the app's own
    /// TTL changes; one that a connection holds has none. While the agent is stopping, no deadline moves any more.
    ///
    /// # Errors
    /// [`LeaseError`] when the lease is unknown, released or lost.
    pub fn renew(
        &self,
        lease: &LeaseId,
        ttl: Option<Duration>,
        arrived: Moment,
    ) -> Result<LeaseView, LeaseError> {
        self.with_leases(|leases| answers::renew(leases, lease, ttl, arrived))
    }

    /// What a lease has left. Asking is no sign of the app's life.
    ///
    /// # Errors
    /// [`LeaseError`] when the lease is unknown, released or lost.
    pub fn lease(&self, lease: &LeaseId, arrived: Moment) -> Result<LeaseView, LeaseError> {
        self.with_leases(|leases| answers::read(leases, lease, arrived))
    }

    /// Ends a lease at its app's word.
    ///
    /// # Errors
    /// [`LeaseError`] when the lease is unknown or was lost before, also when the store says so
    /// only now. Releasing twice is no error.
    pub async fn release(&self, lease: &LeaseId) -> Result<Released, LeaseError> {
        let (_, ended) = self.end(lease, EndedBy::App);
        // In time or not, the state says what is known.
        tokio::select! {
            biased;
            _ended = tokio::time::timeout(ANSWER_LIMIT, ended) => {}
            // A stopped agent leaves the lease to its readers and to its session.
            () = self.0.stop.cancelled() => {}
        }
        let error = {
            let state = self.state();
            match state.core.history.end(lease) {
                Some(End::Released) => return Ok(Released::Done),
                Some(End::Releasing) => return Ok(Released::Pending),
                Some(End::Lost(loss)) => LeaseError::Lost(loss),
                None if state.core.own.lease(lease).is_some() => return Ok(Released::Pending),
                None => LeaseError::Unknown,
            }
        };
        Err(self.explained(lease, error).await)
    }

    /// Releases the lead of a campaign because a release request asks for it, once no app was promised it
    /// any longer. Returns when the lease has ended, for whatever reason, or the agent stops.
    pub(super) async fn resign(&self, lease: &LeaseId) {
        // It has begun already, or the lease has ended, where this finds nothing.
        let _ended = self.end(lease, EndedBy::Request);
        loop {
            let mut ended = pin!(self.0.something_ended.notified());
            // Before the state is read: an end in between is not missed.
            ended.as_mut().enable();
            if self.state().core.own.lease(lease).is_none() {
                return;
            }
            tokio::select! {
                biased;
                () = self.0.stop.cancelled() => return,
                () = ended => {}
            }
        }
    }

    /// Ends a lease whose connection ended. One that is over already needs no end.
    pub(super) fn release_hung_up(&self, lease: &LeaseId) {
        // The end of this process closes connections whose apps go on.
        if self.has_left() {
            return;
        }
        if let (true, _) = self.end(lease, EndedBy::App) {
            tracing::info!(leaseId = %lease, "connection closed; lease released");
        }
    }

    /// Ends a lease. Returns whether that has begun now, and what receives the answer when it is done.
    pub(super) fn end(&self, lease: &LeaseId, by: EndedBy) -> (bool, oneshot::Receiver<Answered>) {
        self.with_state(|state| {
            let (request, ended) = state.expect_reply();
            let has_begun = self.step(state, |core, cx| core.leases(cx).end(lease, by, request));
            (has_begun, ended)
        })
    }

    /// Why a lease is over, as it may be told: where that is being looked up, when it is known.
    pub async fn explained(&self, lease: &LeaseId, error: LeaseError) -> LeaseError {
        loop {
            let ended = self.0.something_ended.notified();
            {
                let state = self.state();
                if error != LeaseError::Lost(Loss::GrantGone)
                    || !state.core.own.is_unexplained(lease)
                {
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
}
