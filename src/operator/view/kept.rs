//! What is kept of a lock: all of it while somebody holds it, and little while it is free.
//!
//! One namespace can make as many free locks as it likes, and an operator that kept them whole would
//! not be there for the others. A delete needs no more than what is kept here.
//!
//! How long a lock had been idle when an operator starts is the one thing here that wall clocks decide: the
//! API server's (`metadata.managedFields`) and the operator's. A wrong clock deletes a free lock too early or
//! too late, and no more. The delete has uid and version as preconditions, and the token rule, which has no
//! clock in it, keeps the next lock of that name from repeating a token.

use std::sync::Arc;
use std::time::Duration;

use super::record::Record;
use crate::operator::plan::Now;
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{Revision, Token};
use crate::store::fleet::{Object, ObjectRef, ObjectVersion, UnreadableFreeLock};

/// A lock as it was seen last.
#[derive(Clone, Debug)]
pub enum KeptLock {
    /// It is held, or has a mark that is to be taken away.
    Full(SeenLock),
    /// It is free.
    Free(FreeLock),
}

/// A lock of which all is kept.
#[derive(Clone, Debug)]
pub struct SeenLock {
    /// It.
    pub lock: Arc<Object<Lock>>,
    /// Since when the same grant has been seen, or since when it has been seen free and unchanged.
    pub since: Moment,
    record: Option<Arc<Record>>,
}

/// What is kept of a free lock.
#[derive(Clone, Debug)]
pub struct FreeLock {
    uid: Arc<str>,
    version: Revision,
    /// The first token of its last grant.
    pub token: Token,
    since: Moment,
    /// For how many seconds it had been idle before that, by what the object said.
    idle_before: u32,
    /// How many seconds its spec says that it is to be kept.
    retain: Option<u32>,
    transitions: u64,
    /// Whether somebody deleted it, and a finalizer keeps it.
    pub is_deleted: bool,
    request: Option<Arc<ReleaseRequest>>,
    record: Option<Arc<Record>>,
}

/// For how long a lock has to be seen free at least before it is deleted. What the object says of its
/// past is when it was last granted, and it may have been held until a moment ago.
const SEEN_FREE: Duration = Duration::from_secs(600);

impl KeptLock {
    /// What is kept of a lock that was told of. `is_found` says that it may have been there for
    /// long: everything is being listed, and it is not known yet.
    pub(super) fn new(lock: Object<Lock>, before: Option<&Self>, is_found: bool, now: Now) -> Self {
        let spell = before.filter(|before| before.is_same_spell(&lock));
        let since = spell.map_or(now.moment, Self::since);
        let known = before.filter(|before| *before.uid() == lock.uid);
        let record = Record::of(&lock, known.and_then(Self::record), is_found, now);
        let value = &lock.stored.value;
        if value.grant.is_some() || value.long_held.is_some() {
            let lock = Arc::new(lock);
            return Self::Full(SeenLock {
                lock,
                since,
                record,
            });
        }
        let idle_before = match spell {
            Some(Self::Free(before)) => before.idle_before,
            None if is_found => idle_for(lock.set_at, now.wall),
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
            record,
        })
    }

    /// The same of one that cannot be read and is certainly free.
    pub(super) fn remains(
        uid: &Arc<str>,
        free: &UnreadableFreeLock,
        before: Option<&Self>,
        is_found: bool,
        now: Now,
    ) -> Self {
        let unchanged =
            before.filter(|before| before.uid() == uid && before.version() == free.version);
        let idle_before = match unchanged {
            Some(Self::Free(before)) => before.idle_before,
            None if is_found => idle_for(free.set_at, now.wall),
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
            record: None,
        })
    }

    /// The object's own id.
    #[must_use]
    pub fn uid(&self) -> &Arc<str> {
        match self {
            Self::Full(seen) => &seen.lock.uid,
            Self::Free(free) => &free.uid,
        }
    }

    /// Its version.
    #[must_use]
    pub fn version(&self) -> Revision {
        match self {
            Self::Full(seen) => seen.lock.stored.version,
            Self::Free(free) => free.version,
        }
    }

    /// Since when the same grant has been seen, or since when it has been seen free and unchanged.
    #[must_use]
    pub fn since(&self) -> Moment {
        match self {
            Self::Full(seen) => seen.since,
            Self::Free(free) => free.since,
        }
    }

    /// Whether somebody deleted it, and a finalizer keeps it.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        match self {
            Self::Full(seen) => seen.lock.is_deleted,
            Self::Free(free) => free.is_deleted,
        }
    }

    /// All of it, where that is kept.
    #[must_use]
    pub const fn full(&self) -> Option<&SeenLock> {
        match self {
            Self::Full(seen) => Some(seen),
            Self::Free(_) => None,
        }
    }

    /// The grant that holds it.
    #[must_use]
    pub fn grant(&self) -> Option<&Grant> {
        self.full()?.lock.stored.value.grant.as_ref()
    }

    /// What a person asked for.
    #[must_use]
    pub fn release_request(&self) -> Option<&Arc<ReleaseRequest>> {
        match self {
            Self::Full(seen) => seen.lock.stored.value.settings.release_request.as_ref(),
            Self::Free(free) => free.request.as_ref(),
        }
    }

    /// Its incidents.
    #[must_use]
    pub fn record(&self) -> Option<&Arc<Record>> {
        match self {
            Self::Full(seen) => seen.record.as_ref(),
            Self::Free(free) => free.record.as_ref(),
        }
    }

    /// Whether the same grant goes on, or the same spell of being free.
    fn is_same_spell(&self, after: &Object<Lock>) -> bool {
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
    /// When it is to be deleted, where `retain` is what applies if its spec does not say.
    #[must_use]
    pub fn due(&self, retain: Duration) -> Moment {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        let retain = self.retain.map_or(retain, seconds);
        let left = retain.saturating_sub(seconds(self.idle_before));
        self.since.after(left.max(retain.min(SEEN_FREE)))
    }

    /// It, at its version.
    #[must_use]
    pub fn object_version(&self, object_ref: &ObjectRef) -> ObjectVersion {
        ObjectVersion {
            object_ref: object_ref.clone(),
            uid: self.uid.clone(),
            version: self.version,
        }
    }
}

/// For how many seconds nothing has been set in an object. A clock that is ahead says nothing.
fn idle_for(set_at: Option<WallTime>, now: WallTime) -> u32 {
    let idle = set_at.map_or(0, |at| now.0.saturating_sub(at.0));
    whole_seconds(Duration::from_micros(u64::try_from(idle).unwrap_or(0)))
}

fn whole_seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}
