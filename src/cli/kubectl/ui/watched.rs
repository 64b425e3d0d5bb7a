//! What the page's server keeps by watches: the locks and the sessions.

use jiff::Timestamp;
use kube::api::ApiResource;
use serde_json::Value;

use crate::crd::{DistributedLock, LockSession};
use crate::kubectl::page::hour::{Hour, Source};
use crate::kubectl::world::{Known, LockSeen, SessionSeen, World};

/// What the watches have shown.
pub(super) struct Seen {
    /// The locks are sorted by namespace and name.
    pub(super) world: World,
    /// What happened to them.
    pub(super) hour: Hour,
    /// Whether the locks were ever listed.
    pub(super) is_listed: bool,
    /// The watch of the locks.
    pub(super) locks: Watch,
    /// The watch of the sessions.
    pub(super) sessions: Watch,
}

/// The state of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    /// It has shown nothing yet.
    Starting,
    /// It has listed all, and shows each change.
    Current,
    /// It was interrupted, for this reason. What it showed last is kept.
    Interrupted(String),
    /// The API server refuses it, for this reason.
    Refused(String),
}

/// A kind of object that is watched.
pub(super) trait Watched: Sized + Send {
    /// Returns the kind.
    fn kind() -> ApiResource;
    /// Reads an object; `None` if it cannot be read.
    fn read(object: &Value) -> Option<Self>;
    /// Takes over the list of all objects. `at` is the time of the observation.
    fn list(seen: &mut Seen, at: Timestamp, all: Vec<Self>);
    /// Takes over one object.
    fn apply(self, seen: &mut Seen, at: Timestamp);
    /// Removes the object of this name.
    fn delete(seen: &mut Seen, namespace: &str, name: &str);
    /// Returns the state of the watch.
    fn watch(seen: &mut Seen) -> &mut Watch;
}

impl Watched for LockSeen {
    fn kind() -> ApiResource {
        ApiResource::erase::<DistributedLock>(&())
    }

    fn read(object: &Value) -> Option<Self> {
        Some(Self::read(object))
    }

    fn list(seen: &mut Seen, at: Timestamp, mut all: Vec<Self>) {
        all.sort_by(|a, b| key(a).cmp(&key(b)));
        let is_listed = |lock: &Self| all.binary_search_by(|one| key(one).cmp(&key(lock))).is_ok();
        let before = seen.world.locks.iter();
        for gone in before.filter(|lock| !is_listed(lock)) {
            seen.hour.deleted(&gone.namespace, &gone.name);
        }
        for lock in &all {
            seen.hour.observe(at, lock, Source::List);
        }
        seen.world.locks = all;
        seen.is_listed = true;
    }

    fn apply(self, seen: &mut Seen, at: Timestamp) {
        seen.hour.observe(at, &self, Source::Watch);
        let locks = &mut seen.world.locks;
        match locks.binary_search_by(|one| key(one).cmp(&key(&self))) {
            Ok(index) => locks[index] = self,
            Err(index) => locks.insert(index, self),
        }
    }

    fn delete(seen: &mut Seen, namespace: &str, name: &str) {
        seen.hour.deleted(namespace, name);
        if let Ok(index) = seen.find(namespace, name) {
            seen.world.locks.remove(index);
        }
    }

    fn watch(seen: &mut Seen) -> &mut Watch {
        &mut seen.locks
    }
}

impl Watched for SessionSeen {
    fn kind() -> ApiResource {
        ApiResource::erase::<LockSession>(&())
    }

    fn read(object: &Value) -> Option<Self> {
        // The holder of a session that cannot be read is shown as without one.
        Self::read(object).ok()
    }

    fn list(seen: &mut Seen, _at: Timestamp, all: Vec<Self>) {
        let all = all.into_iter();
        let all = all.map(|one| ((one.namespace.clone(), one.name.clone()), one));
        seen.world.sessions = Known::Seen(all.collect());
    }

    fn apply(self, seen: &mut Seen, _at: Timestamp) {
        if let Known::Seen(sessions) = &mut seen.world.sessions {
            sessions.insert((self.namespace.clone(), self.name.clone()), self);
        }
    }

    fn delete(seen: &mut Seen, namespace: &str, name: &str) {
        if let Known::Seen(sessions) = &mut seen.world.sessions {
            sessions.remove(&(namespace.to_owned(), name.to_owned()));
        }
    }

    fn watch(seen: &mut Seen) -> &mut Watch {
        &mut seen.sessions
    }
}

impl Seen {
    /// Returns the state before anything was read.
    pub(super) const fn new(world: World) -> Self {
        Self {
            hour: Hour::new(world.now),
            world,
            is_listed: false,
            locks: Watch::Starting,
            sessions: Watch::Starting,
        }
    }

    /// Records that the API server refuses to show the sessions, or the locks.
    pub(super) fn refuse<T: Watched>(&mut self, why: String) {
        *T::watch(self) = Watch::Refused(why);
        if let Watch::Refused(why) = &self.sessions {
            self.world.sessions = Known::Unknown(why.clone());
        }
    }

    /// Returns a lock.
    pub(super) fn lock(&self, namespace: &str, name: &str) -> Option<&LockSeen> {
        let index = self.find(namespace, name).ok()?;
        self.world.locks.get(index)
    }

    /// Returns the index of a lock, or of where it would be.
    fn find(&self, namespace: &str, name: &str) -> Result<usize, usize> {
        let locks = &self.world.locks;
        locks.binary_search_by(|one| key(one).cmp(&(namespace, name)))
    }
}

fn key(lock: &LockSeen) -> (&str, &str) {
    (&lock.namespace, &lock.name)
}
