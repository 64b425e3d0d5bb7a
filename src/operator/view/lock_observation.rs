//! The observation of a lock: the whole object while it is held, and little of it while it is free.
//!
//! A namespace can have any number of free locks. If whole objects were kept, one tenant could
//! exhaust the operator's memory. What is kept here suffices for a delete.
//!
//! Wall clocks decide only one thing here: how long a free lock was idle when the operator starts.
//! They are the API server's (`metadata.managedFields`) and the operator's. A wrong clock only
//! deletes a free lock too early or too late. The delete has uid and version as preconditions. The
//! token rule, which uses no clock, keeps a recreated lock from repeating a token.

use std::sync::Arc;
use std::time::Duration;

use super::incidents::Incidents;
use crate::clock::Now;
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{Revision, Token};
use crate::store::fleet::{Object, ObjectRef, ObjectVersion, UnreadableFreeLock};

/// The last observation of a lock.
#[derive(Clone, Debug)]
pub(in crate::operator) enum LockObservation {
    /// It is held, or has a mark to remove.
    Full(FullLock),
    /// It is free.
    Free(FreeLock),
}

/// The observation of a whole lock.
#[derive(Clone, Debug)]
pub(in crate::operator) struct FullLock {
    /// The lock.
    pub(in crate::operator) lock: Arc<Object<Lock>>,
    /// Since when the same grant was observed, or since when the lock was observed free and
    /// unchanged.
    pub(in crate::operator) since: Moment,
    incidents: Option<Arc<Incidents>>,
}

/// The observation of a free lock.
#[derive(Clone, Debug)]
pub(in crate::operator) struct FreeLock {
    uid: Arc<str>,
    version: Revision,
    /// The first token of its last grant.
    pub(in crate::operator) token: Token,
    since: Moment,
    /// How many seconds it was idle before that, according to the object.
    idle_before: u32,
    /// How many seconds it is kept, according to its spec.
    retain: Option<u32>,
    transitions: u64,
    /// Whether it is being deleted, and a finalizer keeps it.
    pub(in crate::operator) is_deleted: bool,
    request: Option<Arc<ReleaseRequest>>,
    incidents: Option<Arc<Incidents>>,
}

/// The minimum time that a lock is observed free before it is deleted. The object only says when it
/// was last granted, and it may have been held until a moment ago.
const SEEN_FREE: Duration = Duration::from_secs(600);

impl LockObservation {
    /// Creates the observation of a lock. `is_preexisting` means that the lock may be old: it is in
    /// the first list and not known yet.
    pub(super) fn new(
        lock: Object<Lock>,
        before: Option<&Self>,
        is_preexisting: bool,
        now: Now,
    ) -> Self {
        let continued = before.filter(|before| before.continues(&lock));
        let since = continued.map_or(now.moment, Self::since);
        let known = before.filter(|before| *before.uid() == lock.uid);
        let incidents = Incidents::of(&lock, known.and_then(Self::incidents), is_preexisting, now);
        let value = &lock.stored.value;
        if value.grant.is_some() || value.long_held.is_some() {
            let lock = Arc::new(lock);
            return Self::Full(FullLock {
                lock,
                since,
                incidents,
            });
        }
        let idle_before = match continued {
            Some(Self::Free(before)) => before.idle_before,
            None if is_preexisting => idle_time(lock.set_at, now.wall),
            _ => 0,
        };
        Self::Free(FreeLock {
            uid: lock.uid.clone(),
            version: lock.stored.version,
            token: value.token,
            since,
            idle_before,
            retain: value.settings.retain.map(whole_seconds),
            transitions: value.transitions,
            is_deleted: lock.is_deleted,
            request: value.settings.release_request.clone(),
            incidents,
        })
    }

    /// Creates the observation of a lock that is unreadable and certainly free.
    pub(super) fn unreadable_free(
        uid: &Arc<str>,
        free: &UnreadableFreeLock,
        before: Option<&Self>,
        is_preexisting: bool,
        now: Now,
    ) -> Self {
        let unchanged =
            before.filter(|before| before.uid() == uid && before.version() == free.version);
        let idle_before = match unchanged {
            Some(Self::Free(before)) => before.idle_before,
            None if is_preexisting => idle_time(free.set_at, now.wall),
            _ => 0,
        };
        Self::Free(FreeLock {
            uid: uid.clone(),
            version: free.version,
            token: free.token,
            since: unchanged.map_or(now.moment, Self::since),
            idle_before,
            retain: free.retain.map(whole_seconds),
            transitions: 0,
            is_deleted: free.is_deleted,
            request: None,
            incidents: None,
        })
    }

    /// Returns the object's uid.
    pub(in crate::operator) fn uid(&self) -> &Arc<str> {
        match self {
            Self::Full(seen) => &seen.lock.uid,
            Self::Free(free) => &free.uid,
        }
    }

    /// Returns the observed version.
    pub(in crate::operator) fn version(&self) -> Revision {
        match self {
            Self::Full(seen) => seen.lock.stored.version,
            Self::Free(free) => free.version,
        }
    }

    /// Returns since when the same grant was observed, or since when the lock was observed free and
    /// unchanged.
    pub(in crate::operator) fn since(&self) -> Moment {
        match self {
            Self::Full(seen) => seen.since,
            Self::Free(free) => free.since,
        }
    }

    /// Returns whether it is being deleted, and a finalizer keeps it.
    pub(in crate::operator) fn is_deleted(&self) -> bool {
        match self {
            Self::Full(seen) => seen.lock.is_deleted,
            Self::Free(free) => free.is_deleted,
        }
    }

    /// Returns the whole lock, if it is kept.
    pub(in crate::operator) const fn full(&self) -> Option<&FullLock> {
        match self {
            Self::Full(seen) => Some(seen),
            Self::Free(_) => None,
        }
    }

    /// Returns the current grant.
    pub(in crate::operator) fn grant(&self) -> Option<&Grant> {
        self.full()?.lock.stored.value.grant.as_ref()
    }

    /// Returns the release request in its spec.
    pub(in crate::operator) fn release_request(&self) -> Option<&Arc<ReleaseRequest>> {
        match self {
            Self::Full(seen) => seen.lock.stored.value.settings.release_request.as_ref(),
            Self::Free(free) => free.request.as_ref(),
        }
    }

    /// Returns its incidents.
    pub(in crate::operator) fn incidents(&self) -> Option<&Arc<Incidents>> {
        match self {
            Self::Full(seen) => seen.incidents.as_ref(),
            Self::Free(free) => free.incidents.as_ref(),
        }
    }

    /// Returns whether the same grant continues, or the lock stayed free.
    fn continues(&self, after: &Object<Lock>) -> bool {
        let value = &after.stored.value;
        let transitions = match self {
            Self::Full(seen) => seen.lock.stored.value.transitions,
            Self::Free(free) => free.transitions,
        };
        let is_same = match (self.grant(), &value.grant) {
            (None, None) => transitions == value.transitions,
            (Some(before), Some(after)) => before.id == after.id,
            _ => false,
        };
        is_same && *self.uid() == after.uid
    }
}

impl FreeLock {
    /// Returns when to delete it. `retain` applies if its spec has no value.
    pub(in crate::operator) fn due(&self, retain: Duration) -> Moment {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let retain = self.retain.map_or(retain, seconds);
        let left = retain.saturating_sub(seconds(self.idle_before));
        self.since.after(left.max(retain.min(SEEN_FREE)))
    }

    /// Returns the observed version of the object.
    pub(in crate::operator) fn object_version(&self, object_ref: &ObjectRef) -> ObjectVersion {
        ObjectVersion {
            object_ref: object_ref.clone(),
            uid: self.uid.clone(),
            version: self.version,
        }
    }
}

/// Returns for how many seconds no field of an object was set; 0 if the clock that set it is ahead.
fn idle_time(set_at: Option<WallTime>, now: WallTime) -> u32 {
    let idle = set_at.map_or(0, |at| now.0.saturating_sub(at.0));
    whole_seconds(Duration::from_micros(u64::try_from(idle).unwrap_or(0)))
}

fn whole_seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}
