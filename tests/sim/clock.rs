//! The clocks of simulated machines. One virtual time drives everything. Each machine counts it at
//! its own rate and from its own beginning, so that no two show the same time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::protocol::time::{Moment, WallTime};

/// Virtual time: how long the world has been running.
#[derive(Clone, Copy)]
pub(crate) struct Timeline(tokio::time::Instant);

impl Timeline {
    #[expect(
        clippy::disallowed_methods,
        reason = "tokio's paused time is the virtual one"
    )]
    pub(crate) fn start() -> Self {
        Self(tokio::time::Instant::now())
    }

    pub(crate) fn now(self) -> Duration {
        self.0.elapsed()
    }
}

/// The clock of one machine. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(crate) struct MachineClock {
    time: Timeline,
    booted_before: Duration,
    /// How much faster than virtual time it runs, in millionths.
    gain: u64,
    leapt: Arc<Mutex<Duration>>,
}

impl MachineClock {
    pub(crate) fn new(time: Timeline, booted_before: Duration, gain: u64) -> Self {
        Self {
            time,
            booted_before,
            gain,
            leapt: Arc::default(),
        }
    }

    /// Returns the machine's time at this virtual time.
    fn at(&self, virtual_now: Duration) -> Duration {
        let gained = virtual_now.as_nanos() * u128::from(self.gain) / 1_000_000;
        let gained = Duration::from_nanos(u64::try_from(gained).unwrap_or(u64::MAX));
        self.booted_before + virtual_now + gained + *self.leapt()
    }

    /// Returns the virtual time at which this clock shows `moment`. Correct only for a clock that
    /// does not jump.
    pub(crate) fn virtual_time_of(&self, moment: Moment) -> Duration {
        let since = moment.since(Moment::since_boot(self.booted_before + *self.leapt()));
        let nanos = since.as_nanos() * 1_000_000 / (1_000_000 + u128::from(self.gain));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns how much faster than virtual time it runs, in millionths.
    pub(crate) fn gain(&self) -> u64 {
        self.gain
    }

    /// Moves the clock forward, which a correct clock never does.
    pub(crate) fn leap(&self, by: Duration) {
        *self.leapt() += by;
    }

    fn leapt(&self) -> std::sync::MutexGuard<'_, Duration> {
        self.leapt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Moment {
        Moment::since_boot(self.at(self.time.now()))
    }

    fn wall(&self) -> WallTime {
        WallTime(i64::try_from(self.at(self.time.now()).as_micros()).unwrap_or(i64::MAX))
    }
}
