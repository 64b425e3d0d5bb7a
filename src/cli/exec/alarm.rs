//! A timer on the clock that counts while the machine sleeps: after a suspension it fires at once.
//! Timers of tokio and `poll` stand still meanwhile.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

use crate::clock::{Clock as _, SystemClock};
use crate::protocol::time::Moment;

/// For `poll` without waiting, and for a timer never.
const ZERO: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A timer. A process that has its descriptor, too, can set the same timer.
#[derive(Debug)]
pub(super) struct Alarm(OwnedFd);

impl Alarm {
    /// Creates a timer that is not set.
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Returns the timer of another process.
    pub(super) fn of(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Returns a descriptor for another process.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Returns whether the timer has fired since it was set.
    pub(super) fn has_fired(&self) -> io::Result<bool> {
        let mut source = [PollFd::new(&self.0, PollFlags::IN)];
        Ok(poll(&mut source, Some(&ZERO))? > 0)
    }

    /// Sets the timer, in place of the moment before; `None` never fires. It becomes readable then.
    pub(super) fn set(&self, at: Option<Moment>) -> io::Result<()> {
        let it_value = at.map_or(ZERO, |at| {
            let since_boot = at.elapsed_since_boot();
            Timespec {
                tv_sec: i64::try_from(since_boot.as_secs()).unwrap_or(i64::MAX),
                // Zero would disarm it.
                tv_nsec: i64::from(since_boot.subsec_nanos().max(1)),
            }
        });
        let value = Itimerspec {
            it_interval: ZERO,
            it_value,
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &value)?;
        Ok(())
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Waits until a moment; forever without one.
pub(super) async fn wait_until(alarm: &AsyncFd<Alarm>, at: Option<Moment>) -> io::Result<()> {
    alarm.get_ref().set(at)?;
    loop {
        let mut ready = alarm.readable().await?;
        // An earlier moment may have left it readable.
        if at.is_some_and(|at| SystemClock.now() >= at) {
            return Ok(());
        }
        ready.clear_ready();
        alarm.get_ref().set(at)?;
    }
}
