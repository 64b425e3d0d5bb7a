//! Holds a lock by renewals: `POST /v1/locks/acquire`, then `renew` in time. No connection stays open,
//! and the lease survives a restart of the sidecar alone.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::acquire::{Acquisition, Pauses, rounded_up};
use crate::api::{self, AcquireRequest, Acquired};
use crate::clock::now;
use crate::engine;
use crate::error::Error;
use crate::keeper::{drop_lease, keep};
use crate::lease::{Lease, Shared, after};
use crate::wire::{CALL, Nothing, Sidecar};

/// The sidecar's own bound for a long poll, in seconds.
const LONGEST_POLL: u64 = 240;
/// Between two renewals, whatever the sidecar says.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// The requests of one acquisition.
pub(crate) struct Renewal {
    ttl: Duration,
    /// That of the current long poll, so that an answer that got lost takes no second lock.
    request_id: String,
    /// The last request, until it is answered: the sidecar may have granted it.
    unanswered: Option<(Sidecar, AcquireRequest)>,
}

impl Renewal {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            request_id: Uuid::new_v4().to_string(),
            unanswered: None,
        }
    }

    /// Sends one long poll after another, until there is a lease or an error.
    pub(crate) async fn attempt(&mut self, of: &mut Acquisition) -> Result<Lease, Error> {
        loop {
            match self.poll(of).await {
                Err(Error::Held { .. }) if !of.is_over() => {
                    // One long poll is over, and not the wait.
                    of.alive();
                    self.request_id = Uuid::new_v4().to_string();
                }
                Err(Error::Lost { reason, detail }) => {
                    // An earlier answer did not arrive, and its lease has ended.
                    self.request_id = Uuid::new_v4().to_string();
                    return Err(Error::Unavailable {
                        code: reason,
                        detail,
                    });
                }
                result => return result,
            }
        }
    }

    async fn poll(&mut self, of: &Acquisition) -> Result<Lease, Error> {
        let poll = of
            .left()
            .map_or(LONGEST_POLL, |left| left.min(LONGEST_POLL));
        let body = AcquireRequest {
            resource: of.wanted.name.clone(),
            owner_id: of.wanted.owner_id.clone(),
            metadata: of.wanted.metadata(),
            ttl_seconds: rounded_up(self.ttl),
            wait_seconds: Some(poll),
            request_id: Some(self.request_id.clone()),
            ..AcquireRequest::default()
        };
        let sent = now();
        let request = (of.sidecar.clone(), body.clone());
        let before = self.unanswered.replace(request);
        let limit = Duration::from_secs(poll) + CALL;
        let granted: Result<Acquired, Error> =
            of.sidecar.call("/v1/locks/acquire", &body, limit).await;
        match &granted {
            Err(error) if error.is_no_answer() => {}
            // It says nothing of an earlier request.
            Err(Error::Unavailable { .. }) => self.unanswered = before,
            _ => self.unanswered = None,
        }
        let grant = granted?;
        let deadline = after(sent, grant.valid_for_ms);
        let next = after(sent, grant.renew_after_ms);
        let shared = Shared::new(of.sidecar.clone(), grant, deadline);
        if deadline <= now() {
            self.request_id = Uuid::new_v4().to_string();
            engine::spawn(drop_lease(of.sidecar.clone(), shared.path()));
            let why = "the answer came too late, and the lease is over";
            return Err(Error::no_answer(&of.sidecar.address, why));
        }
        keep(shared.clone(), renew(shared.clone(), next));
        Ok(Lease::new(shared))
    }
}

impl Drop for Renewal {
    /// Releases what the last request may have acquired: a repetition gets the same lease. It also
    /// ends the queue entry that the sidecar keeps for a caller that hangs up. A repetition that the
    /// sidecar reads before the hang-up ends nothing, so a second one follows.
    fn drop(&mut self) {
        let Some((sidecar, mut body)) = self.unanswered.take() else {
            return;
        };
        body.wait_seconds = Some(0);
        let attempts = async move {
            let mut pauses = Pauses::default();
            let mut is_second = false;
            loop {
                match sidecar
                    .call::<Acquired>("/v1/locks/acquire", &body, CALL)
                    .await
                {
                    Ok(grant) => {
                        let path = format!("/v1/locks/{}", grant.lease_id);
                        return drop_lease(sidecar, path).await;
                    }
                    Err(Error::Held { .. }) if !is_second => sleep(Duration::from_secs(1)).await,
                    Err(error) if error.may_pass() => sleep(pauses.next()).await,
                    Err(_) => return,
                }
                is_second = true;
            }
        };
        engine::spawn(async move {
            let _free_later = timeout(CALL, attempts).await;
        });
    }
}

/// Renews a lease in time.
async fn renew(shared: Arc<Shared>, mut next: Duration) -> Infallible {
    let path = format!("{}/renew", shared.path());
    loop {
        sleep(next.saturating_sub(now()).max(SHORTEST_PAUSE)).await;
        let sent = now();
        // Leaves time for another attempt.
        let limit = CALL.min(shared.remaining() / 2);
        match shared
            .sidecar
            .call::<api::Lease>(&path, &Nothing {}, limit)
            .await
        {
            Ok(renewed) => {
                shared.prolong(after(sent, renewed.valid_for_ms));
                next = after(sent, renewed.renew_after_ms);
                if let Some(request) = renewed.release_requested {
                    shared.ask_for_release(request.into());
                }
            }
            Err(Error::Lost { reason, detail }) => {
                shared.lose(reason, detail);
                pending::<()>().await;
            }
            Err(error) => {
                // The last validity still counts.
                shared.doubt(&error);
                next = now() + (shared.remaining() / 4).min(Duration::from_secs(1));
            }
        }
    }
}
