//! The places of a listener: how many connections it serves at once, and which one goes when
//! another comes and all are taken.
//!
//! One at work is never closed for another. First closed is the one whose client has read nothing for
//! longest (`connection`), then the one that has waited longest for a whole request, because a client
//! that means to send one does so at once; then the one that has been idle for longest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::connection::Connection;

/// The places of one listener. Cloning gives another handle to the same.
#[derive(Clone)]
pub(super) struct Places(Arc<Shared>);

struct Shared {
    free: Arc<Semaphore>,
    taken: Mutex<HashMap<u64, Connection>>,
    order: Arc<AtomicU64>,
    may_close: Arc<Notify>,
    are_full: AtomicBool,
}

/// A place, for as long as this lives.
pub(super) struct Place {
    places: Places,
    number: u64,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().remove(&self.number);
    }
}

impl Places {
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Shared {
            free: Arc::new(Semaphore::new(count)),
            taken: Mutex::default(),
            order: Arc::default(),
            may_close: Arc::default(),
            are_full: AtomicBool::new(false),
        }))
    }

    /// A place for a connection that was accepted. Where all are taken, one that is not at work
    /// goes; where all are at work, this waits.
    pub(super) async fn take(&self) -> (Connection, Place) {
        let permit = self.permit().await;
        let connection = Connection::new(&self.0.order, &self.0.may_close);
        let number = self.0.order.fetch_add(1, Ordering::Relaxed);
        self.taken().insert(number, connection.clone());
        let place = Place {
            places: self.clone(),
            number,
            _permit: permit,
        };
        (connection, place)
    }

    async fn permit(&self) -> OwnedSemaphorePermit {
        if let Ok(permit) = self.0.free.clone().try_acquire_owned() {
            self.0.are_full.store(false, Ordering::Relaxed);
            return permit;
        }
        loop {
            // Made before the connections are asked: none goes idle unseen in between.
            let may_close = self.0.may_close.notified();
            let is_one_closed = self.close_one();
            self.note_full(is_one_closed);
            let freed = self.0.free.clone().acquire_owned();
            tokio::select! {
                permit = freed => if let Ok(permit) = permit {
                    return permit;
                },
                () = may_close, if !is_one_closed => {}
            }
        }
    }

    /// Closes the connection that is missed least; false when all are at work.
    pub(super) fn close_one(&self) -> bool {
        let taken = self.taken();
        let least = taken
            .values()
            .min_by_key(|connection| connection.activity());
        least.is_some_and(Connection::close_if_idle)
    }

    /// Said once, until there is room again.
    fn note_full(&self, is_one_closed: bool) {
        if self.0.are_full.swap(true, Ordering::Relaxed) {
            return;
        }
        if is_one_closed {
            tracing::warn!("connection limit reached; closing idle connections");
        } else {
            tracing::warn!("connection limit reached; new connections wait");
        }
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
