//! What the store said of elections, kept for a short while: an app may ask ten times a second, and
//! the API server must not feel it.
//!
//! Each read of an election's lock is noted, whoever made it. Invariant: an age counts from before
//! the read was sent, so nothing is called newer than it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::protocol::election::{ElectionName, is_election};
use crate::protocol::ids::Resource;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;
use crate::store::{StoreError, Stored, within};

use super::{ElectionError, ElectionView};
use crate::agent::core::reply::holder_view;
use crate::agent::{Agent, HolderView, QueryError};

/// How old an answer about others may get before the store is asked, and how soon it is asked
/// again after it did not answer.
pub(super) const FRESH_FOR: Duration = Duration::from_secs(1);
/// How long a reader waits for the store who would know nothing else.
const READ_LIMIT: Duration = Duration::from_secs(1);
/// How long a reader waits who can be told what is known from before. The read goes on.
const KNOWN_READ_LIMIT: Duration = Duration::from_millis(100);
/// How many elections are known at once.
const KNOWN_MAX: usize = 1_000;

/// What is known of an election from the store.
#[derive(Default)]
struct Seen {
    /// Before the read was sent; and what it found. None before the first answer.
    found: Option<(Moment, Found)>,
    /// A read that was sent before this says nothing: the lead changed here since.
    changed_at: Moment,
    /// When the store did not answer last.
    failed_at: Option<Moment>,
    /// One reader at a time asks, for all.
    asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
enum Found {
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
pub(super) struct SeenElections(BTreeMap<Resource, Seen>);

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

    fn of(&self, resource: &Resource) -> Option<&Seen> {
        self.0.get(resource)
    }

    fn of_mut(&mut self, resource: &Resource) -> &mut Seen {
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

impl Agent {
    /// The election as the store said last; the store is asked where that was long ago. While it
    /// does not answer, what it said before stands, with its age.
    pub(super) async fn seen_election(
        &self,
        election: &ElectionName,
    ) -> Result<ElectionView, ElectionError> {
        let resource = election.resource();
        if let Some(view) = self.view_seen_within(election, self.fresh_for(resource)) {
            return view;
        }
        let is_known = self
            .view_seen_within(election, Duration::MAX)
            .is_some_and(|known| known.is_ok());
        let asked = if is_known {
            let asked = self.ask_in_turn(resource);
            let in_time = tokio::time::timeout(KNOWN_READ_LIMIT, asked).await;
            in_time.unwrap_or(Ok(()))
        } else {
            self.ask_in_turn(resource).await
        };
        match asked {
            Err(error) if !error.is_transient() => Err(QueryError::from(error).into()),
            asked => {
                let known = self.view_seen_within(election, Duration::MAX);
                known.unwrap_or_else(|| Err(not_known(asked.err())))
            }
        }
    }

    /// Has the store asked by one reader for all, and waits for what it says. The read goes on, and
    /// is noted, when nobody waits for it any more.
    async fn ask_in_turn(&self, resource: &Resource) -> Result<(), StoreError> {
        let one_at_a_time = self.asking(resource).lock_owned().await;
        // Somebody may have asked while this waited for its turn, in vain or not.
        if self.is_seen_within(resource, self.fresh_for(resource))
            || self.was_unanswered_just_now(resource)
        {
            return Ok(());
        }
        let (answered, answer) = oneshot::channel();
        let (agent, resource) = (self.clone(), resource.clone());
        self.spawn(async move {
            let read = within(READ_LIMIT, agent.read_lock(&resource)).await;
            if read.as_ref().is_err_and(StoreError::is_transient) {
                agent.note_unanswered(&resource);
            }
            drop(one_at_a_time);
            // Nobody may be waiting any more.
            let _unheard = answered.send(read.map(|_noted| ()));
        });
        answer.await.unwrap_or(Ok(()))
    }

    fn is_seen_within(&self, resource: &Resource, longest: Duration) -> bool {
        let now = self.now();
        let state = self.state();
        let seen = state.elections.seen.of(resource);
        let found = seen.and_then(|seen| seen.found.as_ref());
        found.is_some_and(|(as_of, _)| now.since(*as_of) < longest)
    }

    /// A candidate's claim reads the lock every third of the TTL anyway.
    fn fresh_for(&self, resource: &Resource) -> Duration {
        let now = self.now();
        if self.state().core.acquiring.is_awaited(resource, now) {
            self.0.config.session_ttl.get() * 2 / 5
        } else {
            FRESH_FOR
        }
    }

    fn asking(&self, resource: &Resource) -> Arc<tokio::sync::Mutex<()>> {
        let mut state = self.state();
        let seen = state.elections.seen.of_mut(resource);
        seen.asking.clone()
    }

    pub(super) fn view_seen_within(
        &self,
        election: &ElectionName,
        longest: Duration,
    ) -> Option<Result<ElectionView, ElectionError>> {
        let resource = election.resource();
        let now = self.now();
        let state = self.state();
        let (as_of, found) = state.elections.seen.of(resource)?.found.as_ref()?;
        let age = now.since(*as_of);
        if age >= longest {
            return None;
        }
        let is_candidate = state.core.acquiring.is_awaited(resource, now)
            || state.elections.campaigns.contains(resource);
        let (holder, token) = match found {
            Found::Lock { holder, token } => (holder.clone(), *token),
            Found::Nothing if is_candidate => (None, Token::NONE),
            Found::Nothing => return Some(Err(ElectionError::Unknown(election.clone()))),
        };
        Some(Ok(ElectionView {
            election: election.clone(),
            lead: None,
            holder,
            token,
            age: Some(age),
        }))
    }

    fn was_unanswered_just_now(&self, resource: &Resource) -> bool {
        let now = self.now();
        let state = self.state();
        let seen = state.elections.seen.of(resource);
        let failed_at = seen.and_then(|seen| seen.failed_at);
        failed_at.is_some_and(|at| now.since(at) < FRESH_FOR)
    }

    fn note_unanswered(&self, resource: &Resource) {
        let now = self.now();
        self.state().elections.seen.of_mut(resource).failed_at = Some(now);
    }
}

/// Why nothing is known of who leads.
fn not_known(error: Option<StoreError>) -> ElectionError {
    let error = error.unwrap_or_else(|| {
        let words = "who leads is not known: it did not answer just now, or that changed meanwhile";
        StoreError::Unavailable(words.into())
    });
    QueryError::from(error).into()
}
