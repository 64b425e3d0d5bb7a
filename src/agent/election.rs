//! Elections, as this agent knows them: whether it leads, and who does otherwise.
//!
//! Who leads here is answered from the lease and the clock alone, and such an answer binds the
//! agent as any other. Others' leadership is what the store said last, with its age; it is asked
//! only when somebody wants to know and what is known is old.
//!
//! Readers of a lead may be others than the app that holds it, and that app speaks for itself alone.
//! Invariant: once it has ended its lease, by DELETE or with its connection, nobody is told of that
//! lease any more, and its grant is given up when the readers' time is over. So that it is succeeded
//! soon, they are told of a short time only. A lead that the agent runs for by itself is the whole
//! pod's: its readers are told the session's deadline, and whoever ends it ends it for all.
//! A loss, a person's force and a stop whose apps have ended end both, as they end everything.

mod campaign;
mod events;
mod interest;
mod seen;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::protocol::election::ElectionName;
use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;
use crate::store::Stored;

use super::core::answers;
use super::core::held::Held;
use super::{Agent, HolderView, QueryError, TooManyStreams};
pub use campaign::Campaign;
pub use events::{ElectionEvent, ElectionEvents};
use interest::Interest;
use seen::SeenElections;

/// The shortest time that readers are told of, where the session has it.
const SHORTEST_TOLD: Duration = Duration::from_secs(1);

/// What the agent remembers of elections.
#[derive(Default)]
pub(super) struct Elections {
    /// Told when somebody leads who did not, also elsewhere.
    changed: Arc<Notify>,
    /// Those that the agent itself runs for.
    campaigns: BTreeSet<Resource>,
    /// What apps asked, about those of them that need an app.
    interests: BTreeMap<Resource, Interest>,
    /// What the store said.
    seen: SeenElections,
}

/// An election as this agent sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionView {
    /// Which.
    pub election: ElectionName,
    /// How this agent leads; none when it does not.
    pub lead: Option<Lead>,
    /// Who leads; none when nobody does, or when that cannot be known of others.
    pub holder: Option<HolderView>,
    /// The leader's token, exact for a leader here; else the first of the last term.
    pub token: Token,
    /// How long ago the store said so; none for what this agent knows by itself, and where nothing
    /// is known.
    pub age: Option<Duration>,
}

/// The lead, by a lease of this agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    /// The lease.
    pub lease: LeaseId,
    /// How long the app may act as the leader, from when it sent the request.
    pub valid_for: Duration,
}

/// Why a question about an election has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ElectionError {
    /// Nobody has run for it.
    #[error("election {0} has had no candidate yet")]
    Unknown(ElectionName),
    /// The store is not asked with success, and nothing is known from before.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// As many streams are open as may be.
    #[error(transparent)]
    TooManyStreams(#[from] TooManyStreams),
}

impl Elections {
    /// Records that a lease of an election's lock began or ended at this moment: who led before is no
    /// news any more.
    pub(super) fn record_change(&mut self, resource: &Resource, at: Moment) {
        self.seen.forget(resource, at);
        self.wake_streams();
    }

    /// Records a lock that was read, by a read that was sent at this moment; if it is an election's.
    pub(super) fn record_read(
        &mut self,
        resource: &Resource,
        asked_at: Moment,
        read: Option<&Stored<Lock>>,
    ) {
        if self.seen.record_read(resource, asked_at, read) {
            self.wake_streams();
        }
    }

    /// Lets the streams look at what is true now.
    pub(super) fn wake_streams(&self) {
        self.changed.notify_waiters();
    }
}

impl Agent {
    /// Who leads an election: this agent, until a deadline of its own, or whom the store named.
    ///
    /// # Errors
    /// [`ElectionError`] when there is no such election, or nothing is known and the store cannot
    /// be asked.
    pub async fn election(
        &self,
        election: &ElectionName,
        arrived: Moment,
    ) -> Result<ElectionView, ElectionError> {
        self.note_question(election);
        if let Some(view) = self.lead(election, arrived) {
            return Ok(view);
        }
        let view = self.seen_election(election).await;
        // The lead may have come while the store was asked.
        self.lead(election, arrived).map_or(view, Ok)
    }

    /// Whether this agent leads an election, by its own deadline.
    #[must_use]
    pub fn leads(&self, election: &ElectionName) -> bool {
        self.lead(election, self.now()).is_some()
    }

    /// Answers when who leads an election may have changed here. Deadlines pass without a word.
    pub async fn elections_changed(&self) {
        let changed = self.state().elections.changed.clone();
        changed.notified().await;
    }

    /// The election as its leader here sees it: recorded in the lease before it is told. None when
    /// the agent has no lease of it, or the clock has ended that.
    pub(super) fn lead(&self, election: &ElectionName, arrived: Moment) -> Option<ElectionView> {
        let resource = election.resource();
        let short = self.short();
        let told =
            self.with_leases(|leases| answers::tell_readers(leases, resource, arrived, short))?;
        let state = self.state();
        let held = state.core.own.lease(&told.lease)?;
        Some(ElectionView {
            election: election.clone(),
            lead: Some(Lead {
                lease: told.lease,
                valid_for: told.valid_for,
            }),
            holder: Some(self.own_view(held)),
            token: held.lease.token,
            age: None,
        })
    }

    /// What readers of an app's lease are told of: it is as long as they keep the next leader waiting
    /// when the app ends it.
    fn short(&self) -> Duration {
        (self.0.config.session_ttl.get() / 10).max(SHORTEST_TOLD)
    }

    fn own_view(&self, held: &Held) -> HolderView {
        HolderView {
            owner: held.owner.clone(),
            pod: self.pod().name.to_string(),
            token: held.stored.value.token,
            acquired_at: held.acquired_at,
            metadata: held.metadata.clone(),
            kept: false,
        }
    }
}
