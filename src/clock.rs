//! The clock: the only place that asks the operating system what time it is.
//!
//! Durations are counted on `CLOCK_BOOTTIME` (on Linux), because `CLOCK_MONOTONIC` (and with it
//! `std::time::Instant` and tokio's) stands still while a machine sleeps: a laptop or a suspended
//! VM would continue to trust leases that others took over long ago. Timers only wake; the clock
//! decides. Wall-clock time is informational and decides nothing, except how long the webhook's
//! certificate is valid: its clients compare it with their wall clocks.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::time::ClockId;

use crate::protocol::time::{Moment, WallTime};

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time on the local clock that counts since boot, sleep included.
    fn now(&self) -> Moment;
    /// Returns the wall-clock time, for records and certificates.
    fn wall(&self) -> WallTime;
}

/// The time, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The local clock, on which decisions are based.
    pub moment: Moment,
    /// The wall clock, for records.
    pub wall: WallTime,
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// This system has no clock that is known to count while the machine sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no clock of {} is known to count while the machine sleeps, and without one a lease would be \
     believed in after others took it over; run this on Linux or macOS, or in a container",
    std::env::consts::OS
)]
pub struct NoClock;

#[cfg(any(target_os = "linux", target_os = "android"))]
const COUNTS_SLEEP: ClockId = ClockId::Boottime;
/// macOS uses the clock that stands still on Linux: `clock_gettime(3)` there says that it "will
/// continue to increment while the system is asleep". Elsewhere [`SystemClock::check`] fails.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const COUNTS_SLEEP: ClockId = ClockId::Monotonic;

impl SystemClock {
    /// Checks that the clock can be used on this system. Call it before an agent is created.
    ///
    /// # Errors
    /// [`NoClock`] if it cannot be used.
    pub const fn check() -> Result<(), NoClock> {
        if cfg!(any(
            target_os = "linux",
            target_os = "android",
            target_os = "macos"
        )) {
            Ok(())
        } else {
            Err(NoClock)
        }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let now = rustix::time::clock_gettime(COUNTS_SLEEP);
        Moment::since_boot(elapsed(now.tv_sec, now.tv_nsec))
    }

    fn wall(&self) -> WallTime {
        WallTime(jiff::Timestamp::now().as_microsecond())
    }
}

/// Returns the boot id, which names the run of the machine in which the clock counts: the kernel
/// creates a new id at each boot.
///
/// # Errors
/// If the system has no boot id. Only Linux has one.
pub fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

/// The clock starts at zero, so neither part is ever negative.
fn elapsed(seconds: i64, nanoseconds: i64) -> Duration {
    Duration::new(
        u64::try_from(seconds).unwrap_or_default(),
        u32::try_from(nanoseconds).unwrap_or_default(),
    )
}

/// A clock that moves only when a test moves it.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Mutex<Duration>>);

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        Moment::since_boot(*self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn wall(&self) -> WallTime {
        let micros = self.now().elapsed_since_boot().as_micros();
        WallTime(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_moves_forward() {
        assert_eq!(SystemClock::check(), Ok(()));
        let first = SystemClock.now();
        assert!(SystemClock.now() >= first);
        assert!(first > Moment::default());
    }
}
