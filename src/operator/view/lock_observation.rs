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
use crate::protocol::completed::COMPLETED_KEPT_FOR;
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{Revision, Token};
use crate::store::fleet::{Object, ObjectRef, ObjectVersion, UnreadableFreeLock};

/// The last observation of a lock.
#[derive(Clone, Debug)]
pub(in crate::operator) struct LockObservation {
    pub(in crate::operator) uid: Arc<str>,
    pub(in crate::operator) version: Revision,
    /// Since when the same grant was observed, or since when the lock was observed free and
    /// unchanged.
    pub(in crate::operator) since: Moment,
    /// Whether it is being deleted, and a finalizer keeps it.
    pub(in crate::operator) is_deleted: bool,
    /// The first token of its last grant.
    pub(in crate::operator) token: Token,
    transitions: u64,
    /// How many seconds it was idle before it was observed, according to the object.
    idle_before: u32,
    /// How many seconds it is kept, according to its spec.
    retain: Option<u32>,
    /// Whether it remembers completed work.
    has_completed: bool,
    pub(in crate::operator) release_request: Option<Arc<ReleaseRequest>>,
    pub(in crate::operator) incidents: Option<Arc<Incidents>>,
    /// The whole lock, while it is held or has a mark to remove.
    pub(in crate::operator) lock: Option<Arc<Object<Lock>>>,
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
        let known = before.filter(|before| before.uid == lock.uid);
        let known = known.and_then(|known| known.incidents.as_ref());
        let value = &lock.stored.value;
        let is_kept = value.grant.is_some() || value.long_held.is_some();
        let idle_before = match continued {
            _ if is_kept => 0,
            Some(before) => before.idle_before,
            None if is_preexisting => idle_time(lock.set_at, now.wall),
            None => 0,
        };
        Self {
            uid: lock.uid.clone(),
            version: lock.stored.version,
            since: continued.map_or(now.moment, |before| before.since),
            is_deleted: lock.is_deleted,
            token: value.token,
            transitions: value.transitions,
            idle_before,
            retain: value.settings.retain.map(whole_seconds),
            has_completed: !value.completed.entries().is_empty(),
            release_request: value.settings.release_request.clone(),
            incidents: Incidents::of(&lock, known, is_preexisting, now),
            lock: is_kept.then(|| Arc::new(lock)),
        }
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
            before.filter(|before| before.uid == *uid && before.version == free.version);
        let idle_before = match unchanged {
            Some(before) => before.idle_before,
            None if is_preexisting => idle_time(free.set_at, now.wall),
            None => 0,
        };
        Self {
            uid: uid.clone(),
            version: free.version,
            since: unchanged.map_or(now.moment, |before| before.since),
            is_deleted: free.is_deleted,
            token: free.token,
            transitions: 0,
            idle_before,
            retain: free.retain.map(whole_seconds),
            has_completed: false,
            release_request: None,
            incidents: None,
            lock: None,
        }
    }

    /// Returns the current grant.
    pub(in crate::operator) fn grant(&self) -> Option<&Grant> {
        self.lock.as_ref()?.stored.value.grant.as_ref()
    }

    /// Returns whether the same grant continues, or the lock stayed free.
    fn continues(&self, after: &Object<Lock>) -> bool {
        let value = &after.stored.value;
        let is_same = match (self.grant(), &value.grant) {
            (None, None) => self.transitions == value.transitions,
            (Some(before), Some(after)) => before.id == after.id,
            _ => false,
        };
        is_same && self.uid == after.uid
    }

    /// Returns when to delete a free lock. `retain` applies if its spec has no value.
    pub(in crate::operator) fn delete_at(&self, retain: Duration) -> Moment {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let least = if self.has_completed {
            COMPLETED_KEPT_FOR
        } else {
            Duration::ZERO
        };
        let retain = self.retain.map_or(retain.max(least), seconds);
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
