//! What the store said of elections, by the reads of their locks.
//!
//! Each read of an election's lock is recorded, whichever part of the agent made it. Invariant: an age counts from before
//! the read was sent, so nothing is called newer than it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::api::HolderView;
use crate::agent::core::reply::holder_view;
use crate::protocol::election::is_election;
use crate::protocol::ids::Resource;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;
use crate::store::Stored;

/// How many elections are known at once.
const KNOWN_MAX: usize = 1_000;

/// What is known of an election from the store.
#[derive(Default)]
pub(in crate::agent) struct Seen {
    /// Before the read was sent; and what it found. None before the first answer.
    pub(in crate::agent) found: Option<(Moment, Found)>,
    /// A read that was sent before this says nothing: the lead changed here since.
    changed_at: Moment,
    /// When the store did not answer last.
    pub(in crate::agent) failed_at: Option<Moment>,
    /// One reader at a time asks, for all.
    pub(in crate::agent) asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
pub(in crate::agent) enum Found {
    /// There is no lock object.
    Nothing,
    /// There is, and it is held by somebody or nobody.
    Lock {
        holder: Option<HolderView>,
        token: Token,
    },
}

impl Found {
    fn of(lock: &Lock) -> Self {
        let holder = lock.grant.as_ref().map(|grant| holder_view(lock, grant));
        Self::Lock {
            holder,
            token: lock.token,
        }
    }

    fn names_the_leader_of(&self, other: &Self) -> bool {
        let leader = |found: &Self| match found {
            Self::Lock {
                holder: Some(holder),
                ..
            } => Some(holder.token),
            _ => None,
        };
        leader(self) == leader(other)
    }
}

/// What the store said of each election.
#[derive(Default)]
pub(in crate::agent) struct SeenElections(BTreeMap<Resource, Seen>);

impl SeenElections {
    /// Records a lock that was read, by a read that was sent at this moment; if it is an election's.
    /// Returns whether another one leads.
    pub(super) fn record_read(
        &mut self,
        resource: &Resource,
        asked_at: Moment,
        read: Option<&Stored<Lock>>,
    ) -> bool {
        if !is_election(resource) {
            return false;
        }
        let found = read.map_or(Found::Nothing, |stored| Found::of(&stored.value));
        let seen = self.of_mut(resource);
        seen.failed_at = None;
        let before = seen.found.as_ref();
        let is_old = before.is_some_and(|(as_of, _)| *as_of > asked_at);
        if is_old || asked_at < seen.changed_at {
            return false;
        }
        let is_news = before.is_none_or(|(_, before)| !before.names_the_leader_of(&found));
        seen.found = Some((asked_at, found));
        is_news
    }

    /// The lead of this agent began or ended at this moment: what the store said before is of a
    /// leader before.
    pub(super) fn forget(&mut self, resource: &Resource, at: Moment) {
        let seen = self.of_mut(resource);
        seen.found = None;
        seen.changed_at = at;
    }

    /// What is known of an election.
    pub(in crate::agent) fn of(&self, resource: &Resource) -> Option<&Seen> {
        self.0.get(resource)
    }

    /// What is known of an election, to change it. At the limit, a new entry replaces the oldest.
    pub(in crate::agent) fn of_mut(&mut self, resource: &Resource) -> &mut Seen {
        if self.0.len() >= KNOWN_MAX && !self.0.contains_key(resource) {
            let as_of = |seen: &Seen| seen.found.as_ref().map(|(as_of, _)| *as_of);
            let oldest = self.0.iter().min_by_key(|(_, seen)| as_of(seen));
            if let Some(oldest) = oldest.map(|(resource, _)| resource.clone()) {
                self.0.remove(&oldest);
            }
        }
        self.0.entry(resource.clone()).or_default()
    }
}
