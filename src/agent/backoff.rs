//! How long to wait before trying the store again: exponential, with full jitter (Brooker,
//! "Exponential Backoff And Jitter", AWS 2015), and bounded in all.

use std::time::Duration;

use crate::protocol::time::Moment;

use super::Agent;
use super::core::{REQUEST_LIMIT, backoff};

/// The tries of one piece of work.
pub(super) struct Backoff {
    tries: u32,
    longest: Duration,
    until: Option<Moment>,
}

impl Backoff {
    /// For work that a caller waits for: short waits, five seconds in all.
    pub(super) fn of_a_call(now: Moment) -> Self {
        Self {
            tries: 0,
            longest: Duration::from_millis(500),
            until: Some(now.after(REQUEST_LIMIT)),
        }
    }
}

impl Agent {
    /// A random wait for the n-th try, of at least a tenth of its bound so that a loop never
    /// spins.
    pub(super) fn pause_after(&self, tries: u32, longest: Duration) -> Duration {
        backoff::pause(&mut self.random().clone(), tries, longest)
    }

    /// A random wait of at most this, and of at least a tenth of it.
    pub(super) fn jittered(&self, bound: Duration) -> Duration {
        backoff::jittered(&mut self.random().clone(), bound)
    }

    /// Waits before the next try; false when there is to be none.
    pub(super) async fn pause(&self, backoff: &mut Backoff) -> bool {
        let wait = self.pause_after(backoff.tries, backoff.longest);
        backoff.tries += 1;
        if backoff
            .until
            .is_some_and(|until| self.now().after(wait) >= until)
        {
            return false;
        }
        tokio::select! {
            biased;
            () = self.0.stop.cancelled() => false,
            () = tokio::time::sleep(wait) => true,
        }
    }
}
