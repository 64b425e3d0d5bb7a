//! What happens in an election, as a stream: who leads now, and each change.
//!
//! As with the events of leases, each is made when the connection can take it, from what is true
//! then. Invariant: one that says that this agent leads is recorded in the lease first, and counts
//! from the arrival of the request that opened the stream.

use std::time::Duration;

use crate::agent::events::StreamPlace;
use crate::agent::{Agent, HolderView};
use crate::protocol::election::ElectionName;
use crate::protocol::ids::LeaseId;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;

use super::seen::FRESH_FOR;
use super::{ElectionError, ElectionView};

/// Events that only say that all is as before come no faster.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// An event, and whether it says more than that all is as before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionEvent {
    /// The election now.
    pub view: ElectionView,
    /// Whether somebody else leads than the event before said.
    pub is_change: bool,
}

/// The events of an election. Dropping it ends nothing but the stream.
pub struct ElectionEvents {
    agent: Agent,
    election: ElectionName,
    /// When the request that opened the stream arrived; what is told counts from there.
    arrived: Moment,
    said: Option<Said>,
    _place: StreamPlace,
}

/// What was said last.
struct Said {
    leader: (Option<LeaseId>, Option<HolderView>),
    /// When the next sign of life is due.
    due: Moment,
    /// When what was said ends, if nothing extends it.
    ends_at: Option<Moment>,
}

impl Agent {
    /// The events of an election, the first of them at once.
    ///
    /// # Errors
    /// [`ElectionError`] as for one question, or when there is no room for a stream.
    pub async fn election_events(
        &self,
        election: &ElectionName,
        arrived: Moment,
    ) -> Result<ElectionEvents, ElectionError> {
        let place = self.stream_place()?;
        self.note_question(election);
        // Whether there is such an election is answered as any question is. The lead is recorded as
        // told by this already; the first event tells it at once, from the same arrival.
        if self.lead(election, arrived).is_none() {
            self.seen_election(election).await?;
        }
        Ok(ElectionEvents {
            agent: self.clone(),
            election: election.clone(),
            arrived,
            said: None,
            _place: place,
        })
    }
}

impl ElectionEvents {
    /// The next event; none when the stream is over, because the agent stops and does not lead, or has
    /// left its lead to its session.
    pub async fn next(&mut self) -> Option<ElectionEvent> {
        loop {
            // Made before anything is asked: what changes in between is not missed.
            let changed = self.agent.state().elections.changed.clone();
            let changed = changed.notified();
            if self.agent.has_left() {
                return None;
            }
            let view = self.view_now().await;
            if let Some(event) = self.say(view) {
                return Some(event);
            }
            if self.agent.is_draining() && !self.was_leading() {
                return None;
            }
            let until = self.rest_until();
            tokio::select! {
                biased;
                () = changed => {}
                () = self.agent.sleep_until(until) => {}
            }
        }
    }

    fn was_leading(&self) -> bool {
        let said = self.said.as_ref();
        said.is_some_and(|said| said.ends_at.is_some())
    }

    /// The election now. That the lead is lost is told without asking the store who has it.
    async fn view_now(&self) -> ElectionView {
        let (agent, election) = (&self.agent, &self.election);
        agent.note_question(election);
        let known = if self.was_leading() {
            let lead = agent.lead(election, self.arrived).map(Ok);
            lead.or_else(|| agent.view_seen_within(election, Duration::MAX))
        } else {
            Some(agent.election(election, self.arrived).await)
        };
        // The stream goes on: what cannot be said of others now may be said later.
        known.and_then(Result::ok).unwrap_or_else(|| ElectionView {
            election: election.clone(),
            lead: None,
            holder: None,
            token: Token::NONE,
            age: None,
        })
    }

    fn say(&mut self, view: ElectionView) -> Option<ElectionEvent> {
        let now = self.agent.now();
        let lease = view.lead.as_ref().map(|lead| lead.lease.clone());
        let leader = (lease, view.holder.clone());
        let before = self.said.as_ref();
        let is_change = before.is_none_or(|said| said.leader != leader);
        if !is_change && before.is_some_and(|said| now < said.due) {
            return None;
        }
        let lead = view.lead.as_ref();
        let ends_at = lead.map(|lead| self.arrived.after(lead.valid_for));
        self.said = Some(Said {
            leader,
            due: now.after(self.interval(ends_at, now)),
            ends_at,
        });
        Some(ElectionEvent { view, is_change })
    }

    /// How often to say that all is as before: often enough for who acts by it.
    fn interval(&self, ends_at: Option<Moment>, now: Moment) -> Duration {
        let usual = self.agent.heartbeat_interval();
        let left = ends_at.map_or(usual, |ends_at| ends_at.since(now) / 3);
        left.min(usual).max(SHORTEST_INTERVAL)
    }

    /// A leader's deadline and its loss are known here. Of others the store is asked.
    fn rest_until(&self) -> Moment {
        let soon = self.agent.now().after(FRESH_FOR);
        let Some(said) = &self.said else { return soon };
        said.due.min(said.ends_at.unwrap_or(soon))
    }
}
