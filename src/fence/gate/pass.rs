//! A request that passed: when it is cut, and that newer tokens wait for its end.

use std::fmt;
use std::future::{Future as _, pending, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

use super::{Cuts, Gate};
use crate::fence::refusal::Code;
use crate::protocol::ids::Resource;
use crate::protocol::token::Token;

/// A request that passed. Newer tokens wait until all its handles are dropped.
pub(in crate::fence) struct Pass {
    pub(super) gate: Gate,
    pub(super) resource: Resource,
    pub(super) token: Token,
    pub(super) cuts: Cuts,
    pub(super) is_answered: AtomicBool,
}

impl Pass {
    /// Records that the service has answered completely, or never received the request.
    pub(in crate::fence) fn answered(&self) {
        self.is_answered.store(true, Ordering::Relaxed);
    }

    /// Cuts the request if the lead has ended. The process may have been suspended since the request passed.
    pub(in crate::fence) fn cut_without_lead(&self) {
        if self.gate.has_lost(self.gate.now()) {
            self.cut_now();
        }
    }

    fn cut_now(&self) {
        self.cuts.requests.cancel();
        self.cuts.tunnels.cancel();
    }

    /// Waits for a cut. Each poll reads the clock first, because the caller may send data after it.
    pub(in crate::fence) async fn until_cut(&self, cut: &CancellationToken) {
        let mut cancelled = pin!(cut.cancelled());
        let mut lead_ends = pin!(self.lead_ends());
        poll_fn(|context| {
            self.cut_without_lead();
            // Also if the lease was extended since: it had ended.
            if lead_ends.as_mut().poll(context).is_ready() {
                self.cut_now();
            }
            cancelled.as_mut().poll(context)
        })
        .await;
    }

    async fn lead_ends(&self) {
        let Some(lead) = &self.gate.0.lead else {
            return pending().await;
        };
        while !self.gate.has_lost(self.gate.now()) {
            self.gate.sleep_until(lead.until()).await;
        }
    }

    /// Is cancelled when a newer token has waited long enough.
    pub(in crate::fence) const fn cut(&self) -> &CancellationToken {
        &self.cuts.requests
    }

    /// Records that a newer token closed the connection.
    pub(in crate::fence) fn was_cut(&self) {
        tracing::warn!(resource = %self.resource, fencingToken = self.token.get(), "request cut");
        self.gate.0.metrics.result(Code::Cut.name());
    }

    /// Is cancelled when a newer token is recorded.
    pub(in crate::fence) const fn tunnel_cut(&self) -> &CancellationToken {
        &self.cuts.tunnels
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.gate.ended(self);
    }
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} with {}", self.resource, self.token)
    }
}
