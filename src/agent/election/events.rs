//! What happens in an election, as a stream: who leads now, and each change.
//!
//! As with the events of leases, each is made when the connection can take it, from what is true
//! then. Invariant: one that says that this agent leads is recorded in the lease first, and counts
//! from the arrival of the request that opened the stream.

use std::time::Duration;

use crate::agent::api::{ElectionError, ElectionView, HolderView};
use crate::agent::driver::Driver;
use crate::agent::streams::StreamPermit;
use crate::protocol::election::ElectionName;
use crate::protocol::ids::LeaseId;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;

use super::current::current;
use super::interest::note_question;
use super::lead::lead;
use super::seen::{FRESH_FOR, view_seen_within};

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
    driver: Driver,
    election: ElectionName,
    /// When the request that opened the stream arrived; what is told counts from there.
    arrived: Moment,
    said: Option<Said>,
    _permit: StreamPermit,
}

/// What was said last.
struct Said {
    leader: (Option<LeaseId>, Option<HolderView>),
    /// When the next sign of life is due.
    due: Moment,
    /// When what was said ends, if nothing extends it.
    ends_at: Option<Moment>,
}

impl ElectionEvents {
    /// Opens the stream.
    pub(in crate::agent) async fn open(
        driver: &Driver,
        election: &ElectionName,
        arrived: Moment,
    ) -> Result<Self, ElectionError> {
        let permit = driver.streams.permit()?;
        // Whether there is such an election is answered as any question is. The lead is recorded as
        // told by this already; the first event tells it at once, from the same arrival.
        current(driver, election, arrived).await?;
        Ok(Self {
            driver: driver.clone(),
            election: election.clone(),
            arrived,
            said: None,
            _permit: permit,
        })
    }

    /// The next event; none when the stream is over, because the agent stops and does not lead, or has
    /// left its lead to its session.
    pub async fn next(&mut self) -> Option<ElectionEvent> {
        loop {
            // Made before anything is asked: what changes in between is not missed.
            let changed = self.driver.state().elections.changed.clone();
            let changed = changed.notified();
            if self.driver.has_left() {
                return None;
            }
            let view = self.view_now().await;
            if let Some(event) = self.say(view) {
                return Some(event);
            }
            if self.driver.state().is_draining() && !self.was_leading() {
                return None;
            }
            let until = self.rest_until();
            tokio::select! {
                biased;
                () = changed => {}
                () = self.driver.sleep_until(until) => {}
            }
        }
    }

    fn was_leading(&self) -> bool {
        let said = self.said.as_ref();
        said.is_some_and(|said| said.ends_at.is_some())
    }

    /// The election now. That the lead is lost is told without asking the store who has it.
    async fn view_now(&self) -> ElectionView {
        let (driver, election) = (&self.driver, &self.election);
        let known = if self.was_leading() {
            note_question(driver, election);
            let lead = lead(driver, election, self.arrived).map(Ok);
            lead.or_else(|| view_seen_within(driver, election, Duration::MAX))
        } else {
            Some(current(driver, election, self.arrived).await)
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
        let now = self.driver.now();
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
        let usual = self.driver.heartbeat_interval();
        let left = ends_at.map_or(usual, |ends_at| ends_at.since(now) / 3);
        left.min(usual).max(SHORTEST_INTERVAL)
    }

    /// A leader's deadline and its loss are known here. Of others the store is asked.
    fn rest_until(&self) -> Moment {
        let soon = self.driver.now().after(FRESH_FOR);
        let Some(said) = &self.said else { return soon };
        said.due.min(said.ends_at.unwrap_or(soon))
    }
}
