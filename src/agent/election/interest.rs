//! Questions of apps about an election: with `--elect` the agent is a candidate only while an app asks.
//!
//! An app that leads asks at least once in each validity. The candidacy starts with the first question.
//! After two session TTLs without a question the agent releases the lead or removes its queue entry: the
//! app was never started, hangs, crashed, or does not use the election. A grant counts as a question,
//! because its lease is recorded as told in full.
//! Invariant: the agent releases no lead that a reader may believe in. A reader's validity ends less than
//! a TTL after its question.

use std::time::Duration;

use tokio::sync::watch;

use super::Campaign;
use crate::agent::state::State;
use crate::agent::{Agent, Life};
use crate::protocol::election::ElectionName;
use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::time::Moment;

/// The number of session TTLs for which a question counts.
const TTLS: u32 = 2;

/// The apps' questions about one election.
pub(super) struct Interest {
    asked_at: Moment,
    /// Whether the last question still counts; the campaign follows it.
    lasts: watch::Sender<bool>,
}

impl Agent {
    /// Runs for an election while an app asks about it.
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

    /// Records a question about an election.
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

    /// Closes a lead whose campaign ends, unless an app has asked since that was decided. Returns
    /// whether it did.
    pub(super) fn close_unasked(&self, election: &ElectionName, lease: &LeaseId) -> bool {
        self.with_state(|state| {
            let interest = state.elections.interests.get(election.resource());
            let is_asked = interest.is_some_and(|interest| *interest.lasts.borrow());
            if !is_asked {
                self.step(state, |core, cx| core.leases(cx).close(lease));
            }
            !is_asked
        })
    }

    async fn follow_interest(self, election: ElectionName) {
        let resource = election.resource();
        let lasts = self
            .state()
            .elections
            .interests
            .get(resource)
            .map(|interest| interest.lasts.subscribe());
        let Some(mut lasts) = lasts else {
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
            let ended = self.with_state(|state| {
                // Read under the mutex: each question comes before this or after.
                let ended = end_interest(state, resource, self.now(), ttl);
                if let Ok((_, Some(lease))) = &ended {
                    // In the same step: a question at the same moment either keeps the lead or gets
                    // "follower".
                    self.step(state, |core, cx| core.leases(cx).close(lease));
                }
                ended
            });
            let (asked_at, lease) = match ended {
                Ok(ended) => ended,
                Err(ends_at) => {
                    self.until_or_stop(ends_at).await;
                    continue;
                }
            };
            let unasked = self.now().since(asked_at).as_secs();
            tracing::info!(%election, idleSeconds = unasked, "campaign paused; no app polls it");
            if let Some(lease) = lease {
                // Its outcome has no reader.
                let _released = self.release(&lease).await;
            }
        }
    }
}

/// Ends the interest in an election after two TTLs without a question. Returns when the last question
/// came, and the lead's lease, which is to be closed.
///
/// # Errors
/// When the interest may end, if it is too early.
fn end_interest(
    state: &State,
    resource: &Resource,
    now: Moment,
    ttl: Duration,
) -> Result<(Moment, Option<LeaseId>), Moment> {
    let held = state.core.own.held(resource);
    let lead = held.filter(|held| held.life == Life::Campaign);
    let Some(interest) = state.elections.interests.get(resource) else {
        return Ok((now, None));
    };
    let asked_at = interest.asked_at;
    let asked_until = asked_at.after(ttl * TTLS);
    // Calls that name the lease are questions as well.
    let told_until = lead.map(|lead| lead.lease.told_until().after(ttl));
    let ends_at = told_until.map_or(asked_until, |told| told.max(asked_until));
    if now < ends_at {
        return Err(ends_at);
    }
    interest.lasts.send_replace(false);
    Ok((asked_at, lead.map(|lead| lead.lease.id.clone())))
}
