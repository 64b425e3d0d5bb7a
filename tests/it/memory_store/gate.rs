//! Holds calls of the store back, so that a test may act while they are under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use super::Call;

/// Which half of a call is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// It is not applied yet.
    Request,
    /// It is applied, and not answered yet.
    Answer,
}

/// Holds one kind of call back until it is opened; then it lets everything through.
#[derive(Clone)]
pub(crate) struct Gate {
    on: (Call, Half),
    open: watch::Sender<bool>,
    waiting: Arc<AtomicUsize>,
}

impl Gate {
    /// How many calls wait or have waited at it.
    pub(crate) fn arrived(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Lets them go on.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// A gate for one half of one kind of call.
    pub(super) fn new(call: Call, half: Half) -> Self {
        Self {
            on: (call, half),
            open: watch::Sender::new(false),
            waiting: Arc::default(),
        }
    }

    /// Waits, if this is what the gate is for.
    pub(super) async fn pass(self, call: Call, half: Half) {
        if self.on != (call, half) {
            return;
        }
        let mut open = self.open.subscribe();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // The gate itself keeps the channel open.
        let _passed = open.wait_for(|open| *open).await;
    }
}
