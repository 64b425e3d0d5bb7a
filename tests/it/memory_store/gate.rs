//! Blocks calls of the store, so that a test can act while they are pending.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use super::Call;

/// The half of a call that is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// It is not applied yet.
    Request,
    /// It is applied, and not answered yet.
    Answer,
}

/// Blocks one kind of call until it is opened; afterwards all calls pass.
#[derive(Clone)]
pub(crate) struct Gate {
    on: (Call, Half),
    open: watch::Sender<bool>,
    waiting: Arc<AtomicUsize>,
}

impl Gate {
    /// Returns how many calls have reached the gate.
    pub(crate) fn arrived(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Lets all calls continue.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Returns a gate for one half of one kind of call.
    pub(super) fn new(call: Call, half: Half) -> Self {
        Self {
            on: (call, half),
            open: watch::Sender::new(false),
            waiting: Arc::default(),
        }
    }

    /// Waits, if the gate is for this half of this call.
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
