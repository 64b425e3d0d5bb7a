//! A process that stands still: none of its tasks takes a step until it goes on.
//!
//! For simulations. What a scheduler, a debugger or a full disk does to a process is done to an
//! agent or an operator by stopping all tasks that it spawned, while time and the others go on. One
//! that never goes on has crashed: nothing of it runs any more, no shutdown, no drop. Shipped
//! processes have none of this.
//!
//! Invariant: a held future is not polled while its process stands still, and is polled soon after it
//! goes on if anything woke it meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What stops a process. Cloning gives another handle to the same one.
#[derive(Clone, Default)]
pub struct Pause(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    stands_still: bool,
    /// How many futures were ever held; the number of each is its place below.
    held: u64,
    /// Who was woken while the process stood still. Sorted, so that all go on in the same order each
    /// time.
    woken: BTreeMap<u64, Waker>,
}

impl Pause {
    /// The process takes no step from now on.
    pub fn stand_still(&self) {
        self.inside().stands_still = true;
    }

    /// The process goes on. What should have happened meanwhile is seen now.
    pub fn go_on(&self) {
        let woken = {
            let mut inside = self.inside();
            inside.stands_still = false;
            std::mem::take(&mut inside.woken)
        };
        for waker in woken.into_values() {
            waker.wake();
        }
    }

    /// Whether the process stands still.
    #[must_use]
    pub fn stands_still(&self) -> bool {
        self.inside().stands_still
    }

    /// The same future, as a part of the process.
    pub fn hold<F: Future>(&self, future: F) -> Held<F> {
        let number = {
            let mut inside = self.inside();
            inside.held += 1;
            inside.held
        };
        Held {
            pause: self.clone(),
            number,
            future: Box::pin(future),
        }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.stands_still() {
            "stands still"
        } else {
            "goes on"
        };
        f.debug_tuple("Pause").field(&state).finish()
    }
}

/// A future that is a part of a process which may stand still.
pub struct Held<F> {
    pause: Pause,
    number: u64,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Held<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        {
            let mut inside = self.pause.inside();
            if inside.stands_still {
                inside.woken.insert(self.number, context.waker().clone());
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
        pause.stand_still();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!task.is_finished(), "a task took a step");
        pause.go_on();
        let at_once = tokio::time::timeout(Duration::from_millis(1), task);
        at_once.await.expect("the timer had fired before").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn task_begun_during_a_pause_waits_for_its_end() {
        let pause = Pause::default();
        pause.stand_still();
        let task = tokio::spawn(pause.hold(async { 7 }));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!task.is_finished());
        pause.go_on();
        assert_eq!(task.await.unwrap(), 7);
    }
}
