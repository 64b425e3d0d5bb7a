//! The clock of all deadlines: it never steps, and also runs while the machine sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const COUNTS_SLEEP: ClockId = ClockId::Boottime;
/// macOS counts the time asleep here. Elsewhere this clock may stand still meanwhile.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const COUNTS_SLEEP: ClockId = ClockId::Monotonic;

/// Returns the time since the machine has started.
pub(crate) fn now() -> Duration {
    let read = clock_gettime(COUNTS_SLEEP);
    // Neither field of this clock is ever negative.
    Duration::new(
        read.tv_sec.unsigned_abs(),
        u32::try_from(read.tv_nsec).unwrap_or(0),
    )
}
