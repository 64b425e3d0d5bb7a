//! A process that is paused, possibly for several reasons at once. It continues when the last
//! reason is over. A crashed process never continues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::pause::Pause;

/// The pause of a process. Cloning gives another handle to the same one.
#[derive(Clone, Default)]
pub(crate) struct ProcessPause {
    pause: Pause,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    since: Duration,
    until: Duration,
    is_crashed: bool,
}

impl ProcessPause {
    pub(crate) fn pause(&self) -> &Pause {
        &self.pause
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pauses it from now on, at least until the given time.
    pub(crate) fn begin(&self, now: Duration, until: Duration) {
        let mut state = self.state();
        if !self.pause.is_paused() {
            state.since = now;
        }
        state.until = state.until.max(until);
        self.pause.pause();
    }

    /// Ends one reason. Returns how long the process was paused, if it continues now.
    pub(crate) fn end(&self, now: Duration) -> Option<Duration> {
        let is_due = self.state().until <= now;
        if is_due { self.resume(now) } else { None }
    }

    /// Continues despite all reasons, unless the process crashed.
    pub(crate) fn resume(&self, now: Duration) -> Option<Duration> {
        let state = self.state();
        if state.is_crashed || !self.pause.is_paused() {
            return None;
        }
        let stood = now.saturating_sub(state.since);
        drop(state);
        self.pause.resume();
        Some(stood)
    }

    /// Stops it permanently, including its steps of a graceful exit.
    pub(crate) fn crash(&self) {
        self.state().is_crashed = true;
        self.pause.pause();
    }
}

#[test]
fn process_stopped_twice_continues_after_both_stops() {
    let second = Duration::from_secs;
    let process = ProcessPause::default();
    process.begin(second(1), second(5));
    process.begin(second(2), second(3));
    assert_eq!(process.end(second(3)), None);
    assert_eq!(process.end(second(5)), Some(second(4)));
    assert_eq!(process.end(second(6)), None, "it continues already");
}

#[test]
fn crashed_process_does_not_continue() {
    let process = ProcessPause::default();
    process.begin(Duration::ZERO, Duration::ZERO);
    process.crash();
    assert_eq!(process.resume(Duration::from_secs(1)), None);
    assert!(process.pause().is_paused());
}
