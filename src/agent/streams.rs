//! The streams of events that are open: how many there are, and what wakes those of a lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::protocol::ids::LeaseId;

use super::api::TooManyStreams;

/// One of the streams that may be open at once.
pub(super) type StreamPlace = OwnedSemaphorePermit;

/// What followers of each lease wait for.
type Followers = BTreeMap<LeaseId, Arc<Notify>>;

/// The streams that are open. Cloning gives another handle to the same ones.
#[derive(Clone)]
pub(super) struct Streams {
    limit: usize,
    places: Arc<Semaphore>,
    /// Wakes those of each lease when it is over, and no others: there are many of both.
    followers: Arc<Mutex<Followers>>,
}

impl Streams {
    /// Returns the streams of an agent that has none yet.
    pub(super) fn new(limit: usize) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self {
            limit,
            places: Arc::new(Semaphore::new(limit)),
            followers: Arc::default(),
        }
    }

    /// How many are open.
    pub(super) fn open(&self) -> usize {
        self.limit - self.places.available_permits()
    }

    /// Room for one more stream.
    pub(super) fn place(&self) -> Result<StreamPlace, TooManyStreams> {
        let place = self.places.clone().try_acquire_owned();
        place.map_err(|_none| TooManyStreams { limit: self.limit })
    }

    /// Follows a lease to its end.
    pub(super) fn follow(&self, lease: &LeaseId) -> Follower {
        let mut followers = self.followers();
        Follower {
            streams: self.clone(),
            lease: lease.clone(),
            over: followers.entry(lease.clone()).or_default().clone(),
        }
    }

    /// A lease is over.
    pub(super) fn wake(&self, lease: &LeaseId) {
        if let Some(over) = self.followers().get(lease) {
            over.notify_waiters();
        }
    }

    fn followers(&self) -> MutexGuard<'_, Followers> {
        self.followers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that is woken when its lease is over.
pub(super) struct Follower {
    streams: Streams,
    lease: LeaseId,
    over: Arc<Notify>,
}

impl Follower {
    /// Answers when the lease is over, or it becomes known why. To be made before that is checked.
    pub(super) fn over(&self) -> OwnedNotified {
        self.over.clone().notified_owned()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut followers = self.streams.followers();
        // The last one besides the map.
        if Arc::strong_count(&self.over) == 2 {
            followers.remove(&self.lease);
        }
    }
}
