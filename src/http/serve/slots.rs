//! The connection slots of a listener: the limit on connections, and which one is closed for a new
//! one.
//!
//! An active connection is never closed for another. First is the one whose client has not read for
//! the longest time (`connection`). Then comes the one that has waited longest for a complete
//! request, because a real client sends it at once. Last is the one that has been idle longest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::connection::Connection;

/// The slots of one listener. A clone is another handle to the same slots.
#[derive(Clone)]
pub(super) struct ConnectionSlots(Arc<Shared>);

struct Shared {
    free: Arc<Semaphore>,
    taken: Mutex<HashMap<u64, Connection>>,
    order: Arc<AtomicU64>,
    may_close: Arc<Notify>,
    is_full: AtomicBool,
}

/// A slot, taken as long as this value lives.
pub(super) struct Slot {
    slots: ConnectionSlots,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.taken().remove(&self.number);
    }
}

impl ConnectionSlots {
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Shared {
            free: Arc::new(Semaphore::new(count)),
            taken: Mutex::default(),
            order: Arc::default(),
            may_close: Arc::default(),
            is_full: AtomicBool::new(false),
        }))
    }

    /// Takes a slot for an accepted connection. If none is free, an inactive connection is closed;
    /// if all are active, this waits.
    pub(super) async fn acquire(&self) -> (Connection, Slot) {
        let permit = self.permit().await;
        let connection = Connection::new(&self.0.order, &self.0.may_close);
        let number = self.0.order.fetch_add(1, Ordering::Relaxed);
        self.taken().insert(number, connection.clone());
        let slot = Slot {
            slots: self.clone(),
            number,
            _permit: permit,
        };
        (connection, slot)
    }

    async fn permit(&self) -> OwnedSemaphorePermit {
        if let Ok(permit) = self.0.free.clone().try_acquire_owned() {
            self.0.is_full.store(false, Ordering::Relaxed);
            return permit;
        }
        loop {
            // Created before the connections are checked, so that none becomes idle unnoticed in
            // between.
            let may_close = self.0.may_close.notified();
            let has_closed = self.close_idle();
            self.log_full(has_closed);
            let freed = self.0.free.clone().acquire_owned();
            tokio::select! {
                permit = freed => if let Ok(permit) = permit {
                    return permit;
                },
                () = may_close, if !has_closed => {}
            }
        }
    }

    /// Closes the connection with the lowest activity. Returns false if all are active.
    pub(super) fn close_idle(&self) -> bool {
        let taken = self.taken();
        let least = taken
            .values()
            .min_by_key(|connection| connection.activity());
        least.is_some_and(Connection::close_if_idle)
    }

    /// Logs once, until a slot is free again.
    fn log_full(&self, has_closed: bool) {
        if self.0.is_full.swap(true, Ordering::Relaxed) {
            return;
        }
        if has_closed {
            tracing::warn!("connection limit reached; closing idle connections");
        } else {
            tracing::warn!("connection limit reached; new connections wait");
        }
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
