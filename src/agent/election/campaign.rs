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

use crate::agent::acquire::acquire;
use crate::agent::api::{AcquireError, AcquireRequest, Acquired, Life};
use crate::agent::driver::Driver;
use crate::agent::release::{release, resign};
use crate::agent::state::elections::Interest;
use crate::protocol::election::ElectionName;
use crate::protocol::ids::{LeaseId, OwnerId};
use crate::protocol::time::Moment;

use super::interest::follow_interest;

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

/// Runs for an election from now on, until the agent stops, but only while `fit` says so: it takes no lead
/// before, and gives it up after.
pub(in crate::agent) fn run_for_while(
    driver: &Driver,
    campaign: Campaign,
    fit: watch::Receiver<bool>,
) {
    let resource = campaign.election.resource().clone();
    let is_new = driver.state().elections.campaigns.insert(resource);
    if !is_new {
        return;
    }
    let candidate = Candidate {
        driver: driver.clone(),
        campaign,
        fit,
    };
    driver.spawn_supervised("a campaign", move || candidate.clone().run());
}

/// Runs for an election while an app asks about it.
pub(in crate::agent) fn run_for_while_asked(driver: &Driver, campaign: Campaign) {
    let election = campaign.election.clone();
    let (interest, is_fit) = Interest::new();
    let resource = election.resource().clone();
    let mut state = driver.state();
    if state.elections.campaigns.contains(&resource) {
        return;
    }
    state.elections.interests.insert(resource, interest);
    drop(state);
    run_for_while(driver, campaign, is_fit);
    let following = driver.clone();
    driver.spawn_supervised("an election's interest", move || {
        follow_interest(following.clone(), election.clone())
    });
}

/// The agent as a candidate in one election.
#[derive(Clone)]
struct Candidate {
    driver: Driver,
    campaign: Campaign,
    /// Whether the pod is fit to lead.
    fit: watch::Receiver<bool>,
}

impl Candidate {
    /// Runs for the election again and again, until the agent stops.
    async fn run(mut self) {
        let period = self.driver.config.session_ttl.period();
        let mut failures = 0;
        let mut complaint = Complaint::default();
        let mut was_asked = false;
        while !self.driver.state().is_draining() {
            tokio::select! {
                biased;
                () = self.driver.stop.cancelled() => return,
                () = until(&mut self.fit, true) => {}
            }
            let preferred = self.campaign.preferred && !was_asked;
            let term = self.run_once(preferred, &mut complaint).await;
            was_asked = term.as_ref().map_or(was_asked, |term| term.was_asked);
            let led_for = term.map(|term| term.lasted);
            // Who lost the lead again and again does not hurry back to it.
            failures = match led_for {
                Some(led_for) if led_for > period => 0,
                _ => u32::min(failures + 1, 16),
            };
            let pause = self.driver.pause_after(failures, period / 3);
            let until = self.driver.now().after(pause);
            self.driver.until_or_stop(until).await;
        }
    }

    /// Runs one candidacy; returns the term that it led to, if it won.
    async fn run_once(&mut self, preferred: bool, complaint: &mut Complaint) -> Option<Term> {
        let lease = match self.own_lead() {
            // Of a task that died.
            Some(lease) => lease,
            None => match self.candidacy_while_fit(preferred).await? {
                Ok(lease) => lease,
                Err(AcquireError::ShuttingDown) => return None,
                Err(error) => {
                    if complaint.is_due(&error, self.driver.now()) {
                        let election = &self.campaign.election;
                        tracing::warn!(%election, %error, "candidacy failed; retrying");
                    }
                    return None;
                }
            },
        };
        let election = self.campaign.election.clone();
        let since = self.driver.now();
        tracing::info!(%election, leaseId = %lease, "started leading");
        let was_asked = self.until_over(&lease).await;
        let lasted = self.driver.now().since(since);
        tracing::info!(%election, leaseId = %lease, "stopped leading");
        Some(Term { lasted, was_asked })
    }

    fn own_lead(&self) -> Option<LeaseId> {
        let state = self.driver.state();
        let held = state.core.own.held(self.campaign.election.resource())?;
        (held.life == Life::Campaign).then(|| held.lease.id.clone())
    }

    /// None when it was withdrawn.
    async fn candidacy_while_fit(
        &mut self,
        preferred: bool,
    ) -> Option<Result<LeaseId, AcquireError>> {
        let candidacy = self.candidacy(preferred);
        tokio::select! {
            // A lease that came in the same moment is served, and given up in its turn.
            biased;
            outcome = candidacy => Some(outcome),
            // Dropping the call is hanging up.
            () = until(&mut self.fit, false) => None,
        }
    }

    fn candidacy(
        &self,
        preferred: bool,
    ) -> impl Future<Output = Result<LeaseId, AcquireError>> + use<> {
        let driver = self.driver.clone();
        let request = AcquireRequest {
            resource: self.campaign.election.resource().clone(),
            owner: OwnerId::from(&*driver.config.pod.name),
            life: Life::Campaign,
            wait: Duration::MAX,
            keep: Duration::ZERO,
            metadata: BTreeMap::new(),
            preferred,
            request_id: None,
        };
        async move {
            match acquire(&driver, request, driver.now()).await? {
                Acquired::Granted { lease, .. } => Ok(lease.lease),
                // Its time is never up.
                Acquired::Held(_) => Err(AcquireError::GrantEnded),
            }
        }
    }

    /// Waits until the term is over. Ends it when the lock's releaseRequest asks for that (then returns true), or
    /// when the pod is not fit to lead.
    async fn until_over(&mut self, lease: &LeaseId) -> bool {
        let driver = self.driver.clone();
        let follower = driver.streams.follow(lease);
        loop {
            // Made before the state is read: what changes in between is not missed.
            let changed = driver.streams_changed.notified();
            let over = follower.over();
            let (is_closing, is_asked) = {
                let state = driver.state();
                let Some(held) = state.core.own.lease(lease) else {
                    return false;
                };
                (held.closing.is_some(), held.release_request().is_some())
            };
            if is_closing || is_asked {
                resign(&driver, lease).await;
                return is_asked;
            }
            // A grant may arrive just after the interest ended; a question since then keeps it.
            let is_unfit = !*self.fit.borrow() && self.close_unasked(lease);
            if is_unfit {
                // As by a DELETE. Lost meanwhile it is over too.
                let _released = release(&driver, lease).await;
                return false;
            }
            tokio::select! {
                biased;
                () = until(&mut self.fit, false) => {}
                () = over => {}
                () = changed => {}
            }
        }
    }

    /// Closes a lead whose campaign ends, unless an app has asked since that was decided. Returns
    /// whether it did.
    fn close_unasked(&self, lease: &LeaseId) -> bool {
        let resource = self.campaign.election.resource();
        self.driver.with_state(|state| {
            let is_asked = state.elections.is_asked(resource);
            if !is_asked {
                let driver = &self.driver;
                driver.step(state, |core, cx| core.leases(cx).close(lease));
            }
            !is_asked
        })
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
