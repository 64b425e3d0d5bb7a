//! The store: objects with revisions, compare-and-swap on them, one counter for all.
//!
//! It does what etcd behind an API server does, one request at a time. Losing and delaying is
//! the network's business, not the store's.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::protocol::ids::SessionId;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::queue::Waiter;
use leasehold::protocol::session::Session;
use leasehold::protocol::token::Revision;

/// An object and the revision of its last write.
pub(crate) type Versioned<T> = (Revision, Arc<T>);

/// Everything that is stored.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    /// Of the last write.
    pub(crate) revision: Revision,
    /// The lock objects; `None` where no object exists.
    pub(crate) locks: Vec<Option<Versioned<Lock>>>,
    /// The session objects.
    pub(crate) sessions: BTreeMap<SessionId, Versioned<Session>>,
}

/// What a write asks of the object that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Precondition {
    /// That there is none.
    Absent,
    /// That it is at this revision.
    At(Revision),
    /// Nothing: only a broken agent writes like this.
    Nothing,
}

/// A write on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    /// Of a lock object.
    Lock {
        /// Which lock.
        lock: usize,
        /// What must hold when it is applied.
        given: Precondition,
        /// What is written; a create keeps no status, as in Kubernetes.
        value: Arc<Lock>,
    },
    /// One more entry in a lock's queue, on any version.
    Join {
        /// Which lock.
        lock: usize,
        /// The waiter that joins.
        waiter: Waiter,
    },
    /// Of a session object.
    Session {
        /// What must hold when it is applied.
        given: Precondition,
        /// What is written.
        value: Arc<Session>,
    },
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// The lock as it is now, after a read or a write.
    Lock(Option<Versioned<Lock>>),
    /// The session as it is now, after a read or a write.
    Session(SessionId, Option<Versioned<Session>>),
    /// The precondition did not hold; nothing was written.
    Conflict,
}

impl Store {
    pub(crate) fn new(locks: usize) -> Self {
        Self {
            // etcd's first revision of an empty cluster is small but never zero.
            revision: Revision(10),
            locks: vec![None; locks],
            sessions: BTreeMap::new(),
        }
    }

    pub(crate) fn read_lock(&self, lock: usize) -> Answer {
        Answer::Lock(self.locks[lock].clone())
    }

    pub(crate) fn read_session(&self, id: &SessionId) -> Answer {
        Answer::Session(id.clone(), self.sessions.get(id).cloned())
    }

    /// Applies a write, once.
    pub(crate) fn apply(&mut self, write: &Write) -> Answer {
        match write {
            Write::Lock { lock, given, value } => {
                let found = self.locks[*lock].as_ref().map(|(revision, _)| *revision);
                if !given.holds(found) {
                    return Answer::Conflict;
                }
                let written = Some((self.next_revision(), value.clone()));
                self.locks[*lock].clone_from(&written);
                Answer::Lock(written)
            }
            Write::Join { lock, waiter } => {
                let found = self.locks[*lock].as_ref();
                let Some(joined) = found.and_then(|(_, l)| l.joined_by(waiter.clone())) else {
                    return Answer::Conflict;
                };
                let written = Some((self.next_revision(), Arc::new(joined)));
                self.locks[*lock].clone_from(&written);
                Answer::Lock(written)
            }
            Write::Session { given, value } => {
                let found = self.sessions.get(&value.id).map(|(revision, _)| *revision);
                if !given.holds(found) {
                    return Answer::Conflict;
                }
                let written = (self.next_revision(), value.clone());
                self.sessions.insert(value.id.clone(), written.clone());
                Answer::Session(value.id.clone(), Some(written))
            }
        }
    }

    /// Deleting an object is a write too.
    pub(crate) fn delete_lock(&mut self, lock: usize) {
        self.locks[lock] = None;
        self.next_revision();
    }

    /// Deleting an object is a write too.
    pub(crate) fn delete_session(&mut self, id: &SessionId) {
        self.sessions.remove(id);
        self.next_revision();
    }

    fn next_revision(&mut self) -> Revision {
        self.revision = Revision(self.revision.0 + 1);
        self.revision
    }
}

impl Precondition {
    fn holds(self, found: Option<Revision>) -> bool {
        match self {
            Self::Absent => found.is_none(),
            Self::At(revision) => found == Some(revision),
            Self::Nothing => found.is_some(),
        }
    }
}
