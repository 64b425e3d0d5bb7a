//! The store of a world: objects with versions, compare-and-swap, and what watches report.

use std::collections::BTreeMap;

use super::*;
use crate::protocol::ids::GrantId;
use crate::protocol::incident::{Ending, IncidentKind};
use crate::protocol::object::{LockAtRevision, LockEvent};
use crate::protocol::queue::Waiter;
use crate::protocol::session::Claimant;
use crate::protocol::token::{Mint, Seen};
use crate::store::embedded::rules::{check_lock, check_session};

#[derive(Clone, Debug, Default)]
pub(super) struct Store {
    pub(super) revision: u64,
    pub(super) locks: BTreeMap<Resource, Stored<Lock>>,
    pub(super) sessions: BTreeMap<SessionId, Stored<Session>>,
    /// What watches of sessions report, oldest first.
    pub(super) log: Vec<(SessionId, LockEvent)>,
    /// Watches can begin from here on.
    oldest: Revision,
    /// The grants that held a lock.
    pub(super) granted: BTreeSet<GrantId>,
}

impl Store {
    /// Makes a call.
    pub(super) fn call(&mut self, call: StoreCall) -> Answer {
        let answer = match call {
            StoreCall::GetSession(id) => Ok(Answer::Session(self.session(&id))),
            StoreCall::CreateSession(new) if self.sessions.contains_key(&new.id) => {
                Err(StoreError::Conflict)
            }
            StoreCall::CreateSession(new) => Ok(self.write_session(*new)),
            StoreCall::UpdateSession(current, next) => {
                let found = self.sessions.get(&current.value.id);
                is_at(found, current.version)
                    .and_then(|found| check_session(&found.value, &next))
                    .map(|()| self.write_session(*next))
            }
            StoreCall::GetLock(resource) => Ok(Answer::Lock(self.stored_lock(&resource))),
            StoreCall::GetLockWithRevision(resource) => {
                let lock = self.stored_lock(&resource).map(|lock| *lock);
                let revision = Revision(self.revision);
                let read = LockAtRevision { lock, revision };
                Ok(Answer::LockWithRevision(Box::new(read)))
            }
            StoreCall::CreateLock(resource) if self.locks.contains_key(&resource) => {
                Err(StoreError::Conflict)
            }
            StoreCall::CreateLock(resource) => Ok(self.write_lock(Lock::unheld(resource))),
            StoreCall::JoinLock(current, waiter) => {
                let lock = self.locks.get(&current.value.resource);
                let joined = lock.map(|lock| lock.value.joined_by(*waiter));
                match joined {
                    None => Err(StoreError::NotFound("the lock".into())),
                    Some(None) => Err(lock.map_or(StoreError::Conflict, |lock| {
                        StoreError::of_refused_join(&lock.value)
                    })),
                    Some(Some(joined)) => Ok(self.write_lock(joined)),
                }
            }
            StoreCall::UpdateLock(current, next) => {
                let found = self.locks.get(&current.value.resource);
                is_at(found, current.version)
                    .and_then(|found| check_lock(&found.value, &next))
                    .map(|()| self.write_lock(*next))
            }
            StoreCall::ListOne => Ok(self.page(Vec::new())),
            StoreCall::ListHeld(session) => Ok(self.page(self.held_by(&session))),
        };
        answer.unwrap_or_else(Answer::Failed)
    }

    /// Returns the locks that a session holds.
    pub(super) fn held_by(&self, session: &SessionId) -> Vec<Stored<Lock>> {
        let locks = self.locks.values();
        let held = locks.filter(|lock| lock.value.holder_session() == Some(session));
        held.cloned().collect()
    }

    /// Returns a lock, as it is.
    pub(super) fn lock(&self, resource: &Resource) -> Option<&Lock> {
        self.locks.get(resource).map(|stored| &stored.value)
    }

    /// Returns the queue entries of a session.
    pub(super) fn entries_of(&self, session: &SessionId) -> impl Iterator<Item = &Waiter> {
        let locks = self.locks.values();
        let entries = locks.flat_map(|lock| lock.value.waiters.entries());
        entries.filter(move |entry| entry.claimant.session == *session)
    }

    /// Returns whether a grant has held a lock.
    pub(super) fn has_granted(&self, grant: &GrantId) -> bool {
        self.granted.contains(grant)
    }

    /// Ends the grants of expired sessions, and removes their entries from these queues.
    pub(super) fn take_over(&mut self, is_dead: impl Fn(&SessionId) -> bool) {
        let seen = Seen::from_list(Revision(self.revision));
        let mint = Mint { seen, floor: 0 };
        let ending = Ending {
            at: WallTime(0),
            kind: IncidentKind::Expired,
            actor: "operator".into(),
            reason: "it expired".into(),
        };
        let is_dead = |claimant: &Claimant| is_dead(&claimant.session);
        let locks = self.locks.values();
        let next = locks.filter_map(|lock| {
            let (lock, at) = (&lock.value, lock.version);
            lock.take_over(at, &mint, is_dead, &ending, None)
        });
        let next: Vec<Lock> = next.collect();
        for lock in next {
            self.write_lock(lock);
        }
    }

    /// Forgets the events so far, as etcd does when it compacts: no watch can begin before them.
    pub(super) const fn compact(&mut self) {
        self.oldest = Revision(self.revision);
    }

    /// Returns the place in the log behind a revision.
    pub(super) fn place_after(&self, revision: Revision) -> Result<usize, StoreError> {
        if revision < self.oldest {
            return Err(StoreError::WatchExpired("it was compacted".into()));
        }
        Ok(self
            .log
            .partition_point(|(_, event)| event.revision() <= revision))
    }

    /// Returns the next event of a session from a place in the log on. The place is then behind it.
    pub(super) fn next_event(&self, session: &SessionId, place: &mut usize) -> Option<LockEvent> {
        loop {
            let (of, event) = self.log.get(*place)?;
            *place += 1;
            if of == session {
                return Some(event.clone());
            }
        }
    }

    fn session(&self, id: &SessionId) -> Option<Box<Stored<Session>>> {
        self.sessions.get(id).cloned().map(Box::new)
    }

    fn stored_lock(&self, resource: &Resource) -> Option<Box<Stored<Lock>>> {
        self.locks.get(resource).cloned().map(Box::new)
    }

    fn page(&self, items: Vec<Stored<Lock>>) -> Answer {
        Answer::Page(Box::new(Page {
            items,
            revision: Revision(self.revision),
            next: None,
            unreadable: Vec::new(),
        }))
    }

    pub(super) fn write_session(&mut self, value: Session) -> Answer {
        self.revision += 1;
        let id = value.id.clone();
        let stored = stored(value, self.revision);
        self.sessions.insert(id, stored.clone());
        Answer::Session(Some(Box::new(stored)))
    }

    /// Deletes a lock, as a person does.
    pub(super) fn delete_lock(&mut self, resource: &Resource) {
        self.revision += 1;
        let at = Revision(self.revision);
        let before = self.locks.remove(resource);
        if let Some(holder) = before.and_then(|lock| lock.value.holder_session().cloned()) {
            let resource = resource.clone();
            self.log.push((holder, LockEvent::Gone { resource, at }));
        }
    }

    pub(super) fn write_lock(&mut self, value: Lock) -> Answer {
        self.revision += 1;
        let at = Revision(self.revision);
        let resource = value.resource.clone();
        let stored = Stored {
            value,
            version: at,
            original: Original::new(()),
        };
        let grant = stored.value.grant.as_ref();
        self.granted.extend(grant.map(|grant| grant.id.clone()));
        let before = self.locks.insert(resource.clone(), stored.clone());
        let before = before.and_then(|before| before.value.holder_session().cloned());
        let holder = stored.value.holder_session().cloned();
        if let Some(before) = before.filter(|before| Some(before) != holder.as_ref()) {
            self.log.push((before, LockEvent::Gone { resource, at }));
        }
        if let Some(holder) = holder {
            let held = LockEvent::Held(Box::new(stored.clone()));
            self.log.push((holder, held));
        }
        Answer::Lock(Some(Box::new(stored)))
    }
}

fn is_at<T>(found: Option<&Stored<T>>, version: Revision) -> Result<&Stored<T>, StoreError> {
    match found {
        None => Err(StoreError::NotFound("the object".into())),
        Some(found) if found.version != version => Err(StoreError::Conflict),
        Some(found) => Ok(found),
    }
}
