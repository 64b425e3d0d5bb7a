//! How long to wait before trying the store again: exponential, with full jitter (Brooker,
//! "Exponential Backoff And Jitter", AWS 2015), and bounded in all.

use std::time::Duration;

use crate::protocol::time::Moment;

use crate::store::{StoreError, within};

use super::{Agent, CALL_LIMIT};

/// The first wait's upper bound.
const FIRST: Duration = Duration::from_millis(50);
/// How long one caller's tries may take together.
const A_CALL: Duration = Duration::from_secs(5);

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
            until: Some(now.after(A_CALL)),
        }
    }

    /// For work behind the scenes, until this moment.
    pub(super) fn until(moment: Moment) -> Self {
        Self {
            tries: 0,
            longest: Duration::from_secs(10),
            until: Some(moment),
        }
    }

    /// For work that goes on until it is done.
    pub(super) const fn endless() -> Self {
        Self {
            tries: 0,
            longest: Duration::from_secs(10),
            until: None,
        }
    }

    /// The next wait is a short one again: the store answers, only not this.
    pub(super) const fn rewind(&mut self) {
        self.tries = 0;
    }
}

impl Agent {
    /// A random wait for the n-th try, of at least a tenth of its bound so that a loop never
    /// spins.
    pub(super) fn pause_after(&self, tries: u32, longest: Duration) -> Duration {
        let bound = FIRST
            .saturating_mul(1 << tries.min(16))
            .min(longest.max(FIRST));
        self.jittered(bound)
    }

    /// A random wait of at most this, and of at least a tenth of it.
    pub(super) fn jittered(&self, bound: Duration) -> Duration {
        bound.mul_f64(0.1 + 0.9 * self.random().fraction())
    }

    /// A read, tried again for a few seconds while the store does not answer.
    pub(super) async fn persist<T, F>(&self, read: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut backoff = Backoff::of_a_call(self.now());
        loop {
            match within(CALL_LIMIT, read()).await {
                Err(error) if error.is_transient() => {
                    if !self.pause(&mut backoff).await {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
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
