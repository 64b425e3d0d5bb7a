//! Faults that last for some seconds, on request.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::channel::mpsc::UnboundedSender;

use super::{Call, Faults};
use crate::protocol::time::Moment;
use crate::store::StoreError;

/// Faults that end after a time. Clones share them.
#[derive(Clone)]
pub struct TimedFaults(Arc<Shared>);

struct Shared {
    now: Box<dyn Fn() -> Moment + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    renewals_fail_until: Moment,
    everything_fails_until: Moment,
    watches: Vec<UnboundedSender<StoreError>>,
}

impl fmt::Debug for TimedFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimedFaults")
    }
}

impl TimedFaults {
    /// Creates an instance without faults, on a clock.
    #[must_use]
    pub fn new(now: impl Fn() -> Moment + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared {
            now: Box::new(now),
            state: Mutex::default(),
        }))
    }

    /// Fails the renewals of sessions for a time; everything else works.
    pub fn fail_renewals_for(&self, time: Duration) {
        let until = self.now().after(time);
        self.state().renewals_fail_until = until;
    }

    /// Fails all calls for a time, and ends the open watches.
    pub fn fail_everything_for(&self, time: Duration) {
        let until = self.now().after(time);
        let mut state = self.state();
        state.everything_fails_until = until;
        for watch in state.watches.drain(..) {
            // A watch without a reader has already ended.
            let _over = watch.unbounded_send(unavailable());
        }
    }

    /// Ends all faults.
    pub fn heal(&self) {
        let mut state = self.state();
        state.renewals_fail_until = Moment::default();
        state.everything_fails_until = Moment::default();
    }

    fn now(&self) -> Moment {
        (self.0.now)()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Faults for TimedFaults {
    fn on_call(&self, call: Call) -> Option<StoreError> {
        let now = self.now();
        let state = self.state();
        if now < state.everything_fails_until {
            return Some(unavailable());
        }
        let fails = call == Call::RenewSession && now < state.renewals_fail_until;
        fails.then(|| StoreError::Unavailable("renewals fail, as /dev/faults was asked".to_owned()))
    }

    fn on_watch(&self, interrupts: UnboundedSender<StoreError>) {
        let mut state = self.state();
        state.watches.retain(|watch| !watch.is_closed());
        state.watches.push(interrupts);
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("it is away, as /dev/faults was asked".to_owned())
}
