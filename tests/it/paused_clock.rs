//! A clock for tests in which waits take no real time.

use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::protocol::time::{Moment, WallTime};

/// A clock that follows tokio's paused time.
pub(crate) struct PausedClock(tokio::time::Instant);

impl PausedClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "tokio's paused time is what it shows"
    )]
    pub(crate) fn start() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Moment {
        // Not zero: no test begins at boot.
        Moment::since_boot(Duration::from_secs(1_000) + self.0.elapsed())
    }

    fn wall(&self) -> WallTime {
        WallTime(i64::try_from(self.0.elapsed().as_micros()).unwrap())
    }
}
