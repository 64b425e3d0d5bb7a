//! A join without an answer, which the test delivers later or never.

use std::sync::{Arc, Mutex};

use leasehold::protocol::lock::Lock;
use leasehold::protocol::queue::Waiter;
use leasehold::store::embedded::EmbeddedStore;
use leasehold::store::{LockStore as _, StoreError, Stored};

use futures::FutureExt as _;

/// The version that was read, and the waiter that joins.
type Sent = (Stored<Lock>, Waiter);

/// A pending join, once it was sent.
#[derive(Clone)]
pub(crate) struct LateJoin {
    store: EmbeddedStore,
    sent: Arc<Mutex<Option<Sent>>>,
}

impl LateJoin {
    pub(super) fn new(store: EmbeddedStore) -> Self {
        Self {
            store,
            sent: Arc::default(),
        }
    }

    pub(super) fn send(&self, current: &Stored<Lock>, waiter: &Waiter) {
        *self.sent.lock().unwrap() = Some((current.clone(), waiter.clone()));
    }

    /// Returns whether it was sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent.lock().unwrap().is_some()
    }

    /// Delivers it to the store, and returns the result.
    pub(crate) fn land(&self) -> Result<(), StoreError> {
        let sent = self.sent.lock().unwrap().take();
        let (current, waiter) = sent.expect("it was sent, and has not landed");
        let joined = self.store.join(&current, &waiter).now_or_never();
        joined.expect("an answer at once").map(|_| ())
    }
}
