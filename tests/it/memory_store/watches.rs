//! Watches that stall or end early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use futures::channel::oneshot;
use futures::future::ready;
use leasehold::store::{LockWatch, StoreError};

use super::MemoryStore;

/// The maximum number of undelivered events of one watch.
const ON_THE_WAY: usize = 64;

/// An open watch. It ends when this is dropped.
pub(super) struct Watch {
    is_stalled: Arc<AtomicBool>,
    _end: oneshot::Sender<()>,
}

impl MemoryStore {
    /// Stalls the open watches without ending them, until the returned value is dropped.
    pub(crate) fn stall_watches(&self) -> impl Sized + use<> {
        let watches = std::mem::take(&mut self.control().watches);
        for watch in &watches {
            watch.is_stalled.store(true, Ordering::SeqCst);
        }
        watches
    }

    /// From now on ends each watch with an error at its next event.
    pub(crate) fn break_watches(&self) {
        self.control().watches_break = true;
    }

    /// Wraps a watch so that it can stall or end.
    pub(super) fn controlled(&self, told: LockWatch) -> LockWatch {
        let is_stalled = Arc::new(AtomicBool::new(false));
        let (end, ended) = oneshot::channel();
        self.control().watches.push(Watch {
            is_stalled: is_stalled.clone(),
            _end: end,
        });
        let store = self.clone();
        let told = told.map(move |event| {
            if store.control().watches_break {
                return Err(StoreError::Ambiguous("it broke off".into()));
            }
            event
        });
        let told = told.filter(move |_| ready(!is_stalled.load(Ordering::SeqCst)));
        let way = self.clone();
        let arriving = told.map(move |event| {
            let way = way.clone();
            async move {
                way.travel().await;
                event
            }
        });
        // Many events are in flight at once, and arrive in order.
        arriving.buffered(ON_THE_WAY).take_until(ended).boxed()
    }
}
