//! Suspends a process in a simulation: none of its tasks runs until it is resumed.
//!
//! A scheduler, a debugger or a full disk can suspend a real process. For an agent or an operator
//! it is simulated by suspending all tasks that it spawned, while time and other processes
//! continue. A process that is never resumed has crashed: nothing of it runs any more, no shutdown
//! and no drop. Shipped processes are never suspended.
//!
//! Invariant: a wrapped future is not polled while its process is suspended. It is polled soon
//! after the resume if it was woken meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Suspends a process. A clone is another handle to the same process.
#[derive(Clone, Default)]
pub struct Pause(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    is_paused: bool,
    /// The number of wrapped futures; each has its number as key below.
    held: u64,
    /// The wakers of futures that were woken meanwhile. Sorted, so that all resume in a
    /// deterministic order.
    woken: BTreeMap<u64, Waker>,
}

impl Pause {
    /// Suspends the process.
    pub fn pause(&self) {
        self.state().is_paused = true;
    }

    /// Resumes the process. Its tasks observe only now what happened meanwhile.
    pub fn resume(&self) {
        let woken = {
            let mut state = self.state();
            state.is_paused = false;
            std::mem::take(&mut state.woken)
        };
        for waker in woken.into_values() {
            waker.wake();
        }
    }

    /// Returns whether the process is suspended.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.state().is_paused
    }

    /// Wraps a future of the process.
    pub fn hold<F: Future>(&self, future: F) -> PausableFuture<F> {
        let number = {
            let mut state = self.state();
            state.held += 1;
            state.held
        };
        PausableFuture {
            pause: self.clone(),
            number,
            future: Box::pin(future),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_paused() {
            "paused"
        } else {
            "running"
        };
        f.debug_tuple("Pause").field(&state).finish()
    }
}

/// A future of a process that can be suspended.
pub struct PausableFuture<F> {
    pause: Pause,
    number: u64,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for PausableFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        {
            let mut state = self.pause.state();
            if state.is_paused {
                state.woken.insert(self.number, context.waker().clone());
                return Poll::Pending;
            }
        }
        self.future.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn paused_process_takes_no_step_and_catches_up_afterwards() {
        let pause = Pause::default();
        let task = tokio::spawn(pause.hold(tokio::time::sleep(Duration::from_secs(1))));
        tokio::task::yield_now().await;
        pause.pause();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!task.is_finished(), "a task took a step");
        pause.resume();
        let at_once = tokio::time::timeout(Duration::from_millis(1), task);
        at_once.await.expect("the timer had fired before").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn task_begun_during_a_pause_waits_for_its_end() {
        let pause = Pause::default();
        pause.pause();
        let task = tokio::spawn(pause.hold(async { 7 }));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!task.is_finished());
        pause.resume();
        assert_eq!(task.await.unwrap(), 7);
    }
}
