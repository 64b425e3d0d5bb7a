//! The last changes of locks, in the order of their revisions, and who is told of new ones.
//!
//! It is bounded: who asks for what happened before it begins is told to list anew. It begins
//! anew with the process, because a watch does too.

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

/// How many changes are remembered.
pub(super) const CHANGES_MAX: usize = 4_096;
/// How many events a watch may have waiting for its reader; one that falls behind further is
/// ended, and opened anew by who needs it.
const BACKLOG_MAX: usize = 1_024;
/// How many revisions may pass a watch by before it is told how far the store is.
const BOOKMARK_AFTER: u64 = 256;

/// One write of a lock.
pub(super) struct Change {
    /// The revision that it consumed.
    pub(super) at: Revision,
    /// What the lock guards.
    pub(super) name: String,
    /// The lock before it; none when it was made, or made no sense.
    pub(super) before: Option<Stored<Lock>>,
    /// The lock after it; none when it was deleted.
    pub(super) after: Option<Stored<Lock>>,
}

/// What is remembered.
pub(super) struct History {
    /// Every change after this revision is in `changes`.
    since: Revision,
    changes: VecDeque<Change>,
    watches: Vec<Watch>,
    /// How many backups were restored.
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
    /// Begins at a revision.
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

    /// The id of an object that is made at a revision. Revisions may be given again after a restore.
    pub(super) fn uid_at(&self, revision: Revision) -> String {
        format!("{}-{revision}", self.restores)
    }

    /// Forgets everything and ends the watches, as when a backup was restored.
    pub(super) fn restart(&mut self, since: Revision) {
        *self = Self {
            restores: self.restores + 1,
            ..Self::new(since)
        };
    }

    /// Takes note of a change and tells those whom it concerns.
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

    /// A revision was consumed that changed no lock but this session; nothing is stored when it was
    /// deleted.
    pub(super) fn pass(&mut self, at: Revision, session: &str, after: Option<&Stored<Session>>) {
        self.watches.retain_mut(|watch| watch.pass(at));
        if !self.session_subscribers.is_empty() {
            let event = fleet::change_event(session, after.cloned());
            self.session_subscribers.publish(&event);
        }
    }

    /// The locks that were written after `at`, by resource, as they were at it.
    ///
    /// # Errors
    /// The first revision that is remembered, when that is later.
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

    /// What becomes of the locks of a session after a revision. As on the API server it may be one that is
    /// still to come, and nothing is told until then.
    ///
    /// # Errors
    /// `WatchExpired` when that is no longer remembered.
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
    /// What this is to a session, if it is anything.
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
    /// False when the watch is over.
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
