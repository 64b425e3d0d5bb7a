//! An app's interest in an election that the agent runs for: a lead needs an app that acts by it.
//!
//! An app asks to learn whether it may act, so an app that leads asks at least within each validity that
//! it is told. From the first question on the agent runs, and when none has come for two session TTLs it
//! gives up its lead or its place in line: the app was never started, hangs, crashed, or has no use for it.
//! A lead counts as a question when it comes, because its lease is told in full then.
//! Invariant: no lead is given up while somebody may believe in it. What readers were told is over a TTL
//! after they asked.

use std::time::Duration;

use tokio::sync::watch;

use super::Campaign;
use crate::agent::state::State;
use crate::agent::{Agent, Life};
use crate::protocol::election::ElectionName;
use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::time::Moment;

/// For how many session TTLs a question counts.
const TTLS: u32 = 2;

/// What is known of the apps' questions about one election.
pub(super) struct Interest {
    asked_at: Moment,
    /// Whether somebody asked lately; the campaign follows it.
    lasts: watch::Sender<bool>,
}

impl Agent {
    /// Runs for an election from when an app asks about it, for as long as one goes on asking.
    pub fn run_for_while_asked(&self, campaign: Campaign) {
        let election = campaign.election.clone();
        let (lasts, is_fit) = watch::channel(false);
        let interest = Interest {
            asked_at: Moment::default(),
            lasts,
        };
        let resource = election.resource().clone();
        let mut state = self.state();
        if state.elections.campaigns.contains(&resource) {
            return;
        }
        state.elections.interests.insert(resource, interest);
        drop(state);
        self.run_for_while(campaign, is_fit);
        let agent = self.clone();
        self.spawn_supervised("an election's interest", move || {
            agent.clone().follow_interest(election.clone())
        });
    }

    /// An app asked about an election just now.
    pub(super) fn note_question(&self, election: &ElectionName) {
        let now = self.now();
        let mut state = self.state();
        let interests = &mut state.elections.interests;
        if let Some(interest) = interests.get_mut(election.resource()) {
            interest.asked_at = now;
            interest
                .lasts
                .send_if_modified(|lasts| !std::mem::replace(lasts, true));
        }
    }

    /// Closes a lead whose campaign is not to go on, unless its app has asked since that was decided.
    pub(super) fn close_unasked(&self, election: &ElectionName, lease: &LeaseId) -> bool {
        let mut state = self.state();
        let interest = state.elections.interests.get(election.resource());
        let is_asked = interest.is_some_and(|interest| *interest.lasts.borrow());
        if !is_asked {
            let now = self.now();
            state.close(lease, now);
        }
        !is_asked
    }

    async fn follow_interest(self, election: ElectionName) {
        let resource = election.resource();
        let Some(mut lasts) = self.state().interest_in(resource) else {
            return;
        };
        while !self.0.stop.is_cancelled() {
            tokio::select! {
                biased;
                () = self.0.stop.cancelled() => return,
                // The agent keeps the other end.
                _lasts = lasts.wait_for(|lasts| *lasts) => {}
            }
            let ttl = self.0.config.session_ttl.get();
            let ended = {
                let mut state = self.state();
                // Read under the mutex: whoever asks does so before this or after.
                let now = self.now();
                state.end_interest(resource, now, ttl)
            };
            let (asked_at, lease) = match ended {
                Ok(ended) => ended,
                Err(ends_at) => {
                    self.until_or_stop(ends_at).await;
                    continue;
                }
            };
            tracing::info!(
                %election, seconds = self.now().since(asked_at).as_secs(),
                "no app has asked about this election for so long; the pod does not run for it \
                 until one asks again (an app that never asks: --elect-always)"
            );
            if let Some(lease) = lease {
                // Nobody is left to be told what became of it.
                let _released = self.release(&lease).await;
            }
        }
    }
}

impl State {
    fn interest_in(&self, resource: &Resource) -> Option<watch::Receiver<bool>> {
        let interest = self.elections.interests.get(resource)?;
        Some(interest.lasts.subscribe())
    }

    /// Ends the interest in an election if nobody has asked for long, and closes the lead that hung on
    /// it in the same step: who asks in that very moment is believed, or told that it is over. Gives
    /// when the last question came, and that lead. Else says when that may be.
    fn end_interest(
        &mut self,
        resource: &Resource,
        now: Moment,
        ttl: Duration,
    ) -> Result<(Moment, Option<LeaseId>), Moment> {
        let held = self.held.get(resource);
        let lead = held.filter(|held| held.life == Life::Campaign);
        let Some(interest) = self.elections.interests.get(resource) else {
            return Ok((now, None));
        };
        let asked_at = interest.asked_at;
        let asked_until = asked_at.after(ttl * TTLS);
        // Who renews the lease by its id, or follows its events, asks as well.
        let told_until = lead.map(|lead| lead.lease.told_until().after(ttl));
        let ends_at = told_until.map_or(asked_until, |told| told.max(asked_until));
        if now < ends_at {
            return Err(ends_at);
        }
        interest.lasts.send_replace(false);
        let lease = lead.map(|lead| lead.lease.id.clone());
        if let Some(lease) = &lease {
            self.close(lease, now);
        }
        Ok((asked_at, lease))
    }
}
