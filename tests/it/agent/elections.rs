//! Elections as an agent sees them: which app leads, for how long, and what that promise binds.

mod app_requests;
mod campaigns;
mod closing;
mod views;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt as _;
use leasehold::agent::{
    AcquireRequest, Campaign, ElectionError, ElectionEvents, ElectionView, Hold, Lead, LeaseEvent,
    Life,
};
use leasehold::protocol::election::ElectionName;
use leasehold::protocol::ids::{LeaseId, OwnerId};
use leasehold::protocol::time::Moment;
use tokio::sync::watch;

use super::Pod;

const RESOURCE: &str = "election:e";
/// What a holder may count on of the default TTL.
const SHARE: Duration = Duration::from_millis(14_250);

fn name(text: &str) -> ElectionName {
    ElectionName::parse(text).unwrap()
}

impl Pod {
    fn run(&self) {
        self.run_as(false);
    }

    fn run_as(&self, preferred: bool) {
        let election = name("e");
        self.agent.run_for(Campaign {
            election,
            preferred,
        });
    }

    fn run_while(&self, fit: watch::Receiver<bool>) {
        let campaign = Campaign {
            election: name("e"),
            preferred: false,
        };
        self.agent.run_for_while(campaign, fit);
    }

    async fn ask(&self) -> Result<ElectionView, ElectionError> {
        self.agent.election(&name("e"), self.now()).await
    }

    async fn view(&self) -> ElectionView {
        self.ask().await.unwrap()
    }

    /// The lead, if it is returned without any wait.
    fn lead_now(&self) -> Option<Lead> {
        let view = self.ask().now_or_never();
        view.and_then(Result::ok).and_then(|view| view.lead)
    }

    /// Until when this pod leads, as it says now; none when it does not.
    async fn leads_until(&self) -> Option<Moment> {
        let asked = self.now();
        let lead = self.ask().await.ok()?.lead?;
        Some(asked.after(lead.valid_for))
    }

    async fn until_leader(&self) -> ElectionView {
        for _ in 0..2_000 {
            if let Ok(view) = self.ask().await
                && view.lead.is_some()
            {
                return view;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{} does not lead", self.agent.pod().name);
    }

    /// A candidacy that a connection holds, which leads.
    async fn candidacy(&self) -> Hold {
        self.candidacy_as(false).await
    }

    async fn candidacy_as(&self, preferred: bool) -> Hold {
        let request = AcquireRequest {
            resource: name("e").resource().clone(),
            owner: OwnerId::from("app"),
            life: Life::Connection {
                max_hold: Duration::from_hours(24),
            },
            wait: Duration::MAX,
            keep: Duration::ZERO,
            metadata: BTreeMap::new(),
            preferred,
            request_id: None,
        };
        self.agent.hold(request, self.now()).await.unwrap()
    }

    async fn leading_candidacy(&self) -> Hold {
        self.candidacy_with_lease().await.0
    }

    async fn candidacy_with_lease(&self) -> (Hold, LeaseId) {
        let mut hold = self.candidacy().await;
        loop {
            match hold.next().await {
                Some(LeaseEvent::Acquired(view)) => return (hold, view.lease),
                Some(_) => {}
                None => panic!("it came to nothing"),
            }
        }
    }

    async fn election_events(&self) -> ElectionEvents {
        let arrived = self.now();
        self.agent
            .election_events(&name("e"), arrived)
            .await
            .unwrap()
    }
}
