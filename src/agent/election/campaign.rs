//! The agent as a candidate: it runs for an election by itself, so that an app only asks who leads.
//!
//! A campaign is a caller that no connection holds: it waits, leads until its lease is
//! over, whatever ended it, and runs again after a pause with full jitter. It ends with the agent. It
//! resigns when the lock's releaseRequest asks for that, as soon as no app of the pod was promised the lead any longer;
//! its next candidacy is not preferred, so that the lead moves on. It also resigns while its pod is not fit to lead.
//! Invariant: one campaign runs for an election, and a lease that it has is told in full, because
//! no connection can end it.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;

use crate::agent::{AcquireError, AcquireRequest, Acquired, Agent, Life};
use crate::protocol::election::ElectionName;
use crate::protocol::ids::{LeaseId, OwnerId};
use crate::protocol::time::Moment;

/// How often the same reason why candidacies come to nothing is said.
const COMPLAINED_EVERY: Duration = Duration::from_secs(60);

/// How a campaign is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Campaign {
    /// What for.
    pub election: ElectionName,
    /// Whether the lead is to be handed to this agent before others that wait and are not preferred.
    pub preferred: bool,
}

impl Agent {
    /// Runs for an election from now on, until the agent stops.
    pub fn run_for(&self, campaign: Campaign) {
        self.run_for_while(campaign, watch::channel(true).1);
    }

    /// The same, but only while `fit` says so: it takes no lead before, and gives it up after.
    pub fn run_for_while(&self, campaign: Campaign, fit: watch::Receiver<bool>) {
        let resource = campaign.election.resource().clone();
        let is_new = self.state().elections.campaigns.insert(resource);
        if !is_new {
            return;
        }
        let agent = self.clone();
        self.spawn_supervised("a campaign", move || {
            agent.clone().campaign_on(campaign.clone(), fit.clone())
        });
    }

    async fn campaign_on(self, campaign: Campaign, mut fit: watch::Receiver<bool>) {
        let ttl = self.0.config.session_ttl.get();
        let mut failures = 0;
        let mut complaint = Complaint::default();
        let mut was_asked = false;
        while !self.is_draining() {
            tokio::select! {
                biased;
                () = self.0.stop.cancelled() => return,
                () = until(&mut fit, true) => {}
            }
            let next = Campaign {
                preferred: campaign.preferred && !was_asked,
                ..campaign.clone()
            };
            let term = self.run_once(&next, &mut fit, &mut complaint).await;
            was_asked = term.as_ref().map_or(was_asked, |term| term.was_asked);
            let led_for = term.map(|term| term.lasted);
            // Who lost the lead again and again does not hurry back to it.
            failures = match led_for {
                Some(led_for) if led_for > ttl => 0,
                _ => u32::min(failures + 1, 16),
            };
            let pause = self.now().after(self.pause_after(failures, ttl / 3));
            self.until_or_stop(pause).await;
        }
    }

    /// Runs one candidacy; returns the term that it led to, if it won.
    async fn run_once(
        &self,
        campaign: &Campaign,
        fit: &mut watch::Receiver<bool>,
        complaint: &mut Complaint,
    ) -> Option<Term> {
        let election = &campaign.election;
        let lease = match self.own_lead(campaign) {
            // Of a task that died.
            Some(lease) => lease,
            None => match self.candidacy_while(campaign, fit).await? {
                Ok(lease) => lease,
                Err(AcquireError::ShuttingDown) => return None,
                Err(error) => {
                    if complaint.is_due(&error, self.now()) {
                        tracing::warn!(
                            %election, %error, "candidacy failed; retrying"
                        );
                    }
                    return None;
                }
            },
        };
        let since = self.now();
        tracing::info!(%election, leaseId = %lease, "started leading");
        let was_asked = self.until_over(election, &lease, fit).await;
        let lasted = self.now().since(since);
        tracing::info!(%election, leaseId = %lease, "stopped leading");
        Some(Term { lasted, was_asked })
    }

    fn own_lead(&self, campaign: &Campaign) -> Option<LeaseId> {
        let state = self.state();
        let held = state.core.own.held(campaign.election.resource())?;
        (held.life == Life::Campaign).then(|| held.lease.id.clone())
    }

    /// None when it was withdrawn.
    async fn candidacy_while(
        &self,
        campaign: &Campaign,
        fit: &mut watch::Receiver<bool>,
    ) -> Option<Result<LeaseId, AcquireError>> {
        tokio::select! {
            // A lease that came in the same moment is served, and given up in its turn.
            biased;
            outcome = self.candidacy(campaign) => Some(outcome),
            // Dropping the call is hanging up.
            () = until(fit, false) => None,
        }
    }

    async fn candidacy(&self, campaign: &Campaign) -> Result<LeaseId, AcquireError> {
        let request = AcquireRequest {
            resource: campaign.election.resource().clone(),
            owner: OwnerId::from(&*self.pod().name),
            life: Life::Campaign,
            wait: Duration::MAX,
            keep: Duration::ZERO,
            metadata: BTreeMap::new(),
            preferred: campaign.preferred,
            request_id: None,
        };
        match self.acquire(request, self.now()).await? {
            Acquired::Granted { lease, .. } => Ok(lease.lease),
            // Its time is never up.
            Acquired::Held { .. } => Err(AcquireError::GrantEnded),
        }
    }

    /// Waits until the term is over. Ends it when the lock's releaseRequest asks for that (then returns true), or
    /// when the pod is not fit to lead.
    async fn until_over(
        &self,
        election: &ElectionName,
        lease: &LeaseId,
        fit: &mut watch::Receiver<bool>,
    ) -> bool {
        let follower = self.follow(lease);
        loop {
            // Made before the state is read: what changes in between is not missed.
            let changed = self.0.streams_changed.notified();
            let over = follower.over();
            let (is_closing, is_asked) = {
                let state = self.state();
                let Some(held) = state.core.own.lease(lease) else {
                    return false;
                };
                (held.closing.is_some(), held.release_request().is_some())
            };
            if is_closing || is_asked {
                self.resign(lease).await;
                return is_asked;
            }
            // A grant may arrive just after the interest ended; a question since then keeps it.
            let is_unfit = !*fit.borrow() && self.close_unasked(election, lease);
            if is_unfit {
                // As by a DELETE. Lost meanwhile it is over too.
                let _released = self.release(lease).await;
                return false;
            }
            tokio::select! {
                biased;
                () = until(fit, false) => {}
                () = over => {}
                () = changed => {}
            }
        }
    }
}

/// A term as leader.
struct Term {
    lasted: Duration,
    /// Whether it ended because the lock's releaseRequest asked for that.
    was_asked: bool,
}

/// Why a candidacy came to nothing, as it was said last.
#[derive(Default)]
struct Complaint(Option<(AcquireError, Moment)>);

impl Complaint {
    /// Whether this is to be said: it is something else, or it was not said for a while.
    fn is_due(&mut self, error: &AcquireError, now: Moment) -> bool {
        let is_said = |(said, at): &(AcquireError, Moment)| {
            said == error && now.since(*at) < COMPLAINED_EVERY
        };
        let is_due = !self.0.as_ref().is_some_and(is_said);
        if is_due {
            self.0 = Some((error.clone(), now));
        }
        is_due
    }
}

/// Waits until `fit` says this; for ever where nobody can change it any more.
async fn until(fit: &mut watch::Receiver<bool>, wanted: bool) {
    if fit.wait_for(|is_fit| *is_fit == wanted).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_error_is_logged_once_a_minute_and_a_new_one_at_once() {
        let mut complaint = Complaint::default();
        let at = |seconds| Moment::since_boot(Duration::from_secs(seconds));
        let (one, other) = (AcquireError::GrantEnded, AcquireError::SessionLost);
        let said = [(&one, 1), (&one, 60), (&one, 61), (&other, 62), (&one, 63)];
        let due = said.map(|(error, second)| complaint.is_due(error, at(second)));
        assert_eq!(due, [true, false, true, true, true]);
    }
}
