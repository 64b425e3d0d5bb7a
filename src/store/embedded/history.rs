//! The last changes of locks, in the order of their revisions, and the watches on them.
//!
//! It is bounded: a watch from an older revision has to list again. It starts empty with the
//! process, because watches do, too.

use std::collections::{BTreeMap, VecDeque};

use futures::StreamExt as _;
use futures::channel::mpsc;
use futures::stream;

use super::fleet::{self, Subscribers};
use crate::protocol::ids::SessionId;
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;
use crate::store::fleet::Object;
use crate::store::{LockEvent, LockWatch, StoreError, Stored};

/// The number of changes that are remembered.
pub(super) const CHANGES_MAX: usize = 4_096;
/// The maximum backlog of a watch. A watch that falls behind further is ended, and its caller opens
/// another.
const BACKLOG_MAX: usize = 1_024;
/// After how many revisions without an event a watch gets a bookmark.
const BOOKMARK_AFTER: u64 = 256;

/// One write of a lock.
pub(super) struct Change {
    /// The revision that it consumed.
    pub(super) at: Revision,
    /// The resource of the lock.
    pub(super) name: String,
    /// The lock before the write; `None` if it was created, or was unreadable.
    pub(super) before: Option<Stored<Lock>>,
    /// The lock after the write; `None` if it was deleted.
    pub(super) after: Option<Stored<Lock>>,
}

/// The remembered changes and the open watches.
pub(super) struct History {
    /// Every change after this revision is in `changes`.
    since: Revision,
    changes: VecDeque<Change>,
    watches: Vec<Watch>,
    /// The number of restored backups.
    restores: u64,
    pub(super) lock_subscribers: Subscribers<Object<Lock>>,
    pub(super) session_subscribers: Subscribers<Object<Session>>,
}

struct Watch {
    session: SessionId,
    sent_up_to: Revision,
    events: mpsc::Sender<LockEvent>,
}

impl History {
    /// Creates a history that starts at a revision.
    pub(super) fn new(since: Revision) -> Self {
        Self {
            since,
            changes: VecDeque::new(),
            watches: Vec::new(),
            restores: 0,
            lock_subscribers: Subscribers::default(),
            session_subscribers: Subscribers::default(),
        }
    }

    /// Returns the uid of an object that is created at a revision. Revisions may repeat after a
    /// restore.
    pub(super) fn uid_at(&self, revision: Revision) -> String {
        format!("{}-{revision}", self.restores)
    }

    /// Forgets everything and ends the watches, after a backup was restored.
    pub(super) fn restart(&mut self, since: Revision) {
        *self = Self {
            restores: self.restores + 1,
            ..Self::new(since)
        };
    }

    /// Records a change, and sends it to the watches and subscribers.
    pub(super) fn push(&mut self, change: Change) {
        self.watches.retain_mut(|watch| watch.publish(&change));
        if !self.lock_subscribers.is_empty() {
            let event = fleet::change_event(&change.name, change.after.clone());
            self.lock_subscribers.publish(&event);
        }
        self.changes.push_back(change);
        while self.changes.len() > CHANGES_MAX {
            if let Some(oldest) = self.changes.pop_front() {
                self.since = oldest.at;
            }
        }
    }

    /// Records a revision that changed only a session. `after` is `None` if it was deleted.
    pub(super) fn pass(&mut self, at: Revision, session: &str, after: Option<&Stored<Session>>) {
        self.watches.retain_mut(|watch| watch.pass(at));
        if !self.session_subscribers.is_empty() {
            let event = fleet::change_event(session, after.cloned());
            self.session_subscribers.publish(&event);
        }
    }

    /// Returns the locks that were written after `at`, by resource, in their state at it.
    ///
    /// # Errors
    /// The first remembered revision, if it is later.
    pub(super) fn undo_to(
        &self,
        at: Revision,
    ) -> Result<BTreeMap<String, Option<Stored<Lock>>>, Revision> {
        if at < self.since {
            return Err(self.since);
        }
        let mut then = BTreeMap::new();
        for change in self.changes.iter().filter(|change| change.at > at) {
            then.entry(change.name.clone())
                .or_insert_with(|| change.before.clone());
        }
        Ok(then)
    }

    /// Watches the locks of a session after a revision. As on the API server it may be a future
    /// one, and nothing is sent until then.
    ///
    /// # Errors
    /// `WatchExpired` if that revision is no longer remembered.
    pub(super) fn watch(
        &mut self,
        session: &SessionId,
        after: Revision,
    ) -> Result<LockWatch, StoreError> {
        if after < self.since {
            return Err(StoreError::WatchExpired(format!(
                "what happened after revision {after} is kept from {} on",
                self.since
            )));
        }
        let past: Vec<_> = self
            .changes
            .iter()
            .filter(|change| change.at > after)
            .filter_map(|change| change.for_session(session))
            .collect();
        let (events, receiver) = mpsc::channel(BACKLOG_MAX);
        self.watches.push(Watch {
            session: session.clone(),
            sent_up_to: after,
            events,
        });
        Ok(stream::iter(past).chain(receiver).map(Ok).boxed())
    }
}

impl Change {
    /// Returns the event for a session, if the change concerns it.
    fn for_session(&self, session: &SessionId) -> Option<LockEvent> {
        let holds = |lock: &&Stored<Lock>| lock.value.holder_session() == Some(session);
        if let Some(lock) = self.after.as_ref().filter(holds) {
            return Some(LockEvent::Held(Box::new(lock.clone())));
        }
        let before = self.before.as_ref().filter(holds)?;
        Some(LockEvent::Gone {
            resource: before.value.resource.clone(),
            at: self.at,
        })
    }
}

impl Watch {
    /// Sends a change. Returns false if the watch has ended.
    fn publish(&mut self, change: &Change) -> bool {
        let is_due = change.at > self.sent_up_to;
        match change.for_session(&self.session).filter(|_| is_due) {
            Some(event) => self.send(event, change.at),
            None => self.pass(change.at),
        }
    }

    fn pass(&mut self, at: Revision) -> bool {
        if at.0.saturating_sub(self.sent_up_to.0) < BOOKMARK_AFTER {
            return !self.events.is_closed();
        }
        self.send(LockEvent::Bookmark(at), at)
    }

    fn send(&mut self, event: LockEvent, at: Revision) -> bool {
        self.sent_up_to = at;
        self.events.try_send(event).is_ok()
    }
}
