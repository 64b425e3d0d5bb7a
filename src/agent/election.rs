//! Elections, as this agent knows them: whether it leads, and who does otherwise.
//!
//! Who leads here is answered from the lease and the clock alone, and such an answer binds the
//! agent as any other. Others' leadership is what the store said last, with its age; it is asked
//! only when somebody wants to know and what is known is old.
//!
//! Invariant: what a reader was told outlives the connection that held the lease, or not: whoever
//! ends a lease because its connection ended waits until the readers' time is over too. So that a
//! dead app is succeeded soon, readers of such a lease are told of a short time only.

mod campaign;
mod events;
mod seen;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::protocol::election::ElectionName;
use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::lease::Told;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;

use super::state::{Held, State};
use super::{Agent, HolderView, Life, QueryError, TooManyStreams};
pub use campaign::Campaign;
pub use events::{ElectionEvent, ElectionEvents};
use seen::Seen;

/// The shortest time that readers are told of, where the session has it.
const SHORTEST_TOLD: Duration = Duration::from_secs(1);

/// What the agent remembers of elections.
#[derive(Default)]
pub(super) struct Elections {
    /// Told when somebody leads who did not, also elsewhere.
    changed: Arc<Notify>,
    /// The leases by which the agent itself leads, and not an app's connection.
    own: HashMap<Resource, LeaseId>,
    /// Those that the agent itself runs for.
    campaigns: HashSet<Resource>,
    /// The leases whose readers were told of them.
    readers: HashMap<LeaseId, Readers>,
    /// What the store said.
    seen: HashMap<Resource, Seen>,
}

/// Who was told of a lease by an election's answer.
#[derive(Clone, Copy, Debug, Default)]
struct Readers {
    /// Until when the last of them may believe in it.
    told_until: Moment,
    /// The connection that held the lease has ended; nobody is told of it any more.
    is_closing: bool,
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
    #[error("nobody has run for the election {0}")]
    Unknown(ElectionName),
    /// The store is not asked with success, and nothing is known from before.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// As many streams are open as may be.
    #[error(transparent)]
    TooManyStreams(#[from] TooManyStreams),
}

impl Elections {
    /// A lease began.
    pub(super) fn note_begin(&self) {
        self.changed.notify_waiters();
    }

    /// A lease ended, and nobody is bound by it any more.
    pub(super) fn note_end(&mut self, resource: &Resource, lease: &LeaseId) {
        self.readers.remove(lease);
        if self.own.get(resource) == Some(lease) {
            self.own.remove(resource);
        }
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
        if let Some(view) = self.lead(election, arrived) {
            return Ok(view);
        }
        let view = self.seen_election(election).await;
        // The lead may have come while the store was asked.
        self.lead(election, arrived).map_or(view, Ok)
    }

    /// The election as its leader here sees it: recorded in the lease before it is told. None when
    /// the agent has no lease of it, or the clock has ended that.
    pub(super) fn lead(&self, election: &ElectionName, arrived: Moment) -> Option<ElectionView> {
        let resource = election.resource();
        let lease = self.state().held.get(resource)?.lease.id.clone();
        self.end_if_lost(&lease);
        let mut state = self.state();
        // Read under the mutex: whoever judges the same lease does so before this or after.
        let now = self.now();
        let told = state.tell_readers(resource, &lease, (arrived, now), self.short())?;
        let held = state.held.get(resource)?;
        Some(ElectionView {
            election: election.clone(),
            lead: Some(Lead {
                lease,
                valid_for: told.valid_for,
            }),
            holder: Some(self.own_view(held)),
            token: held.lease.token,
            age: None,
        })
    }

    /// What readers of a lease are told of that a connection holds: it is as long as they keep the
    /// next leader waiting when the connection ends.
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

    /// Whoever held a lease has gone. None when it may be released now; else the moment until which
    /// readers of its election may believe in it: it is released then, and nobody is told of it
    /// any more.
    pub(super) fn readers_until(&self, lease: &LeaseId) -> Option<Moment> {
        let now = self.now();
        let mut state = self.state();
        let changed = state.elections.changed.clone();
        let readers = state.elections.readers.get_mut(lease)?;
        if now >= readers.told_until {
            return None;
        }
        readers.is_closing = true;
        changed.notify_waiters();
        Some(readers.told_until)
    }

    /// Waits until a moment, or the agent's end.
    pub(super) async fn until_or_stop(&self, until: Moment) {
        // Timers only wake.
        while self.now() < until && !self.0.stop.is_cancelled() {
            tokio::select! {
                () = self.sleep_until(until) => {}
                () = self.0.stop.cancelled() => {}
            }
        }
    }
}

impl State {
    /// Tells readers of an election how long its lease may be believed; notes that they were told.
    fn tell_readers(
        &mut self,
        resource: &Resource,
        lease: &LeaseId,
        (arrived, now): (Moment, Moment),
        short: Duration,
    ) -> Option<Told> {
        let is_own = self.elections.own.get(resource) == Some(lease);
        let readers = self.elections.readers.get(lease).copied();
        let mut readers = readers.unwrap_or_default();
        if readers.is_closing {
            return None;
        }
        let session = &self.held.get(resource)?.session;
        let deadline = self.deadline_of(session)?;
        let is_draining = self.draining;
        let held = self.held.get_mut(resource);
        let held = held.filter(|held| held.lease.id == *lease)?;
        let bound = match held.life {
            Life::Connection { .. } if !is_own => now.after(short),
            Life::Connection { .. } | Life::Ttl(_) => deadline,
        };
        let told = if is_draining {
            held.lease.last_told(arrived, now)
        } else {
            held.lease.tell_again(arrived, now, deadline.min(bound))
        };
        let until = told.ok()?.until.min(bound);
        readers.told_until = readers.told_until.max(until);
        self.elections.readers.insert(lease.clone(), readers);
        Some(Told {
            until,
            valid_for: until.since(arrived),
        })
    }
}
