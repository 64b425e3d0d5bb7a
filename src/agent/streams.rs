//! How many streams of events are open, and what wakes those who follow a lease: streams and campaigns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::protocol::ids::LeaseId;

use super::api::TooManyStreams;

/// One of the streams that may be open at once.
pub(super) type StreamPermit = OwnedSemaphorePermit;

/// What followers of each lease wait for: a lease that is over wakes its own, and there are many of both.
type Followers = BTreeMap<LeaseId, Arc<Notify>>;

/// The streams that are open, and the followers of leases.
pub(super) struct Streams {
    limit: usize,
    permits: Arc<Semaphore>,
    followers: Arc<Mutex<Followers>>,
}

impl Streams {
    /// Returns the streams of an agent that has none yet.
    pub(super) fn new(limit: usize) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self {
            limit,
            permits: Arc::new(Semaphore::new(limit)),
            followers: Arc::default(),
        }
    }

    /// How many are open.
    pub(super) fn open(&self) -> usize {
        self.limit - self.permits.available_permits()
    }

    /// Returns a permit for one more stream.
    pub(super) fn permit(&self) -> Result<StreamPermit, TooManyStreams> {
        let permit = self.permits.clone().try_acquire_owned();
        permit.map_err(|_none| TooManyStreams { limit: self.limit })
    }

    /// Follows a lease to its end.
    pub(super) fn follow(&self, lease: &LeaseId) -> Follower {
        let mut followers = locked(&self.followers);
        Follower {
            followers: self.followers.clone(),
            lease: lease.clone(),
            over: followers.entry(lease.clone()).or_default().clone(),
        }
    }

    /// A lease is over.
    pub(super) fn wake(&self, lease: &LeaseId) {
        if let Some(over) = locked(&self.followers).get(lease) {
            over.notify_waiters();
        }
    }
}

fn locked(followers: &Mutex<Followers>) -> MutexGuard<'_, Followers> {
    followers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One that is woken when its lease is over.
pub(super) struct Follower {
    followers: Arc<Mutex<Followers>>,
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
        let mut followers = locked(&self.followers);
        // Dropped under the mutex: of two followers that end at once, the second one finds none left.
        drop(std::mem::take(&mut self.over));
        let over = followers.get(&self.lease);
        if over.is_some_and(|over| Arc::strong_count(over) == 1) {
            followers.remove(&self.lease);
        }
    }
}
