//! An app's request for a lock: answered from what the agent knows, or by a try at the store that
//! ends with a lease, a refusal, or nothing held.
//!
//! What it does not do: read or write the lock (`take` does). Invariant: a grant is the caller's
//! lease, or it is released; a caller that hung up and a try that ended without knowing whether
//! its write landed each leave a task behind that sees to it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::store::{StoreError, Stored};

use super::bid::{Begun, Bid, Outlook, Uncertain};
use super::core::begun::{self, FromWarm, NewLease};
use super::core::history::RequestKey;
use super::line::KEPT_FOR;
use super::resume::RESUMED_WITHIN;
use super::take::Taken;
use super::{AcquireError, AcquireRequest, Acquired, Agent, LeaseError, LeaseView, Life};

/// How long who tries stands in the queue of a lock that is kept between leases.
const KEPT_IS_GIVEN_WITHIN: Duration = Duration::from_millis(250);

/// It was not given.
const KEPT_AND_IN_USE: &str = "its pod keeps the lock between leases and gives it to whoever asks \
     when it is idle; it did not within 250 ms, so it is in use";
/// It could not be asked for.
const KEPT_AND_UNKNOWN: &str = "its pod keeps the lock between leases; whether it is in use could \
     not be found out, because its queue was not joined within 250 ms";

/// An outcome on its way to a caller who may have hung up: then the lease is released, at once or
/// when its request was not repeated in time.
pub(super) struct Delivery {
    agent: Agent,
    outcome: Option<Result<Acquired, AcquireError>>,
    kept_until: Option<Moment>,
}

impl Delivery {
    /// A lease that was just made.
    pub(super) fn new(agent: &Agent, lease: LeaseView) -> Self {
        let granted = Acquired::Granted {
            lease,
            replayed: false,
        };
        Self::of(agent, Ok(granted))
    }

    /// Nothing was granted.
    pub(super) fn refused(agent: &Agent, error: AcquireError) -> Self {
        Self::of(agent, Err(error))
    }

    fn of(agent: &Agent, outcome: Result<Acquired, AcquireError>) -> Self {
        Self {
            agent: agent.clone(),
            outcome: Some(outcome),
            kept_until: None,
        }
    }

    /// The request has a `requestId`, and may be repeated by a client that did not hear: until
    /// this moment, or for as long as a place is kept.
    pub(super) fn keep(&mut self, until: Option<Moment>) {
        let until = until.unwrap_or_else(|| self.agent.now().after(KEPT_FOR));
        self.kept_until = Some(until);
    }

    /// Another call of the same request took the place over meanwhile. What it is told counts from
    /// its own arrival: by the older one it would believe for too long.
    pub(super) fn tell_from(&mut self, arrived: Moment) {
        if let Some(Ok(Acquired::Granted { lease, .. })) = &mut self.outcome {
            match self.agent.renew(&lease.lease, None, arrived) {
                Ok(told) => *lease = told,
                Err(_lost) => self.outcome = Some(Err(AcquireError::SessionLost)),
            }
        }
    }

    /// It has arrived.
    pub(super) fn take(&mut self) -> Option<Result<Acquired, AcquireError>> {
        self.outcome.take()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(Ok(Acquired::Granted {
            lease,
            replayed: false,
        })) = self.outcome.take()
        {
            match self.kept_until {
                Some(until) => self.agent.release_unless_repeated(lease.lease, until),
                None => self.agent.release_undelivered(&lease.lease),
            }
        }
    }
}

impl Agent {
    /// Takes a lock: one try, or as long as the request waits. `arrived` is when it came in.
    ///
    /// # Errors
    /// [`AcquireError`]; nothing is held through this request then.
    pub async fn acquire(
        &self,
        request: AcquireRequest,
        arrived: Moment,
    ) -> Result<Acquired, AcquireError> {
        let outcome = if !self.until_resumed(RESUMED_WITHIN).await {
            Err(AcquireError::Resuming)
        } else if let FromWarm::Lease(lease) = self.acquire_warm(&request, arrived) {
            Ok(Acquired::Granted {
                lease: *lease,
                replayed: false,
            })
        } else if request.wait.is_zero() {
            self.acquire_unless_held(&request, arrived).await
        } else {
            self.acquire_in_line(&request, arrived).await
        };
        let outcome = match outcome {
            Err(AcquireError::RequestEnded { lease, why }) => {
                let why = self.explained(&lease, why).await;
                Err(AcquireError::RequestEnded { lease, why })
            }
            outcome => outcome,
        };
        self.count_acquire(&request, arrived, &outcome);
        outcome
    }

    /// One try. A lock that its pod keeps between leases may not be in use, and only that pod knows:
    /// who tries stands in its queue for a moment.
    async fn acquire_unless_held(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<Acquired, AcquireError> {
        let first = self.acquire_at_once(request, arrived).await;
        if !matches!(&first, Ok(Acquired::Held { holder, .. }) if holder.kept) {
            return first;
        }
        let request = AcquireRequest {
            wait: self.now().since(arrived) + KEPT_IS_GIVEN_WITHIN,
            ..request.clone()
        };
        match self.acquire_in_line(&request, arrived).await {
            // That somebody has the lock is known; more could not be found out.
            Err(AcquireError::Store(_) | AcquireError::TooManyWaiting { .. }) => {
                first.map(|held| explain_kept(held, KEPT_AND_UNKNOWN))
            }
            outcome => outcome.map(|held| explain_kept(held, KEPT_AND_IN_USE)),
        }
    }

    /// One try, in a task of its own: a caller that hangs up must not leave a write half
    /// understood.
    async fn acquire_at_once(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<Acquired, AcquireError> {
        let (send, receive) = tokio::sync::oneshot::channel();
        let (agent, request) = (self.clone(), request.clone());
        self.spawn(async move {
            let outcome = agent.acquire_once(&request, arrived).await;
            // Not delivered means dropped, and dropped means released.
            let mut delivery = Delivery::of(&agent, outcome);
            if request.request_id.is_some() {
                delivery.keep(None);
            }
            drop(send.send(delivery));
        });
        let delivered = receive.await.ok();
        let outcome = delivered.and_then(|mut delivery| delivery.take());
        outcome.unwrap_or_else(|| {
            Err(AcquireError::Store(StoreError::Ambiguous(
                "the try was cut off".into(),
            )))
        })
    }

    fn count_acquire(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
        outcome: &Result<Acquired, AcquireError>,
    ) {
        let name = match outcome {
            Ok(Acquired::Granted {
                replayed: false, ..
            }) => "granted",
            Ok(Acquired::Granted { replayed: true, .. }) => "replayed",
            Ok(Acquired::Held { .. }) => {
                self.0.metrics.contended(request.resource.as_str());
                "held"
            }
            Err(AcquireError::Store(
                StoreError::Unauthenticated(_)
                | StoreError::Denied(_)
                | StoreError::DeniedByPolicy(_)
                | StoreError::QuotaExceeded(_),
            )) => "denied",
            Err(AcquireError::Resuming) => "unavailable",
            Err(AcquireError::Store(error)) if error.is_transient() => "unavailable",
            Err(_) => "failed",
        };
        let took = self.now().since(arrived);
        if request.wait.is_zero() {
            self.0.metrics.acquired(name, took);
        } else {
            self.0.metrics.waited(name, took);
        }
    }

    async fn acquire_once(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<Acquired, AcquireError> {
        let attempt = loop {
            let ended = self.0.something_ended.notified();
            // First, because it may take a while, and a repetition be answered meanwhile.
            let warm = self.acquire_warm_slowly(request, arrived).await?;
            if let FromWarm::Lease(lease) = warm {
                return Ok(Acquired::Granted {
                    lease: *lease,
                    replayed: false,
                });
            }
            if let Some(answer) = self.answer_locally(request, arrived)? {
                return Ok(answer);
            }
            match self.begin_attempt(request)? {
                Begun::Attempt(attempt) => break attempt,
                // Its answer will be this one's too.
                Begun::UnderWay => ended.await,
                // One try of it more would be a second lease.
                Begun::Waits => return self.last_of(&request.resource),
            }
        };
        let mut bid = Bid::new(request.clone(), attempt, false);
        let outcome = match self.take_or_prove_dead(&mut bid).await {
            Ok(Taken::Ours(stored) | Taken::HandedOver(stored)) => {
                bid.uncertain = Some(Uncertain::Swap(stored.version));
                let lease = self.make_lease(&bid, stored, arrived).await;
                lease.map(|lease| Acquired::Granted {
                    lease,
                    replayed: false,
                })
            }
            Ok(Taken::Queued(_, outlook) | Taken::Others(outlook)) => Ok(outlook.held),
            Err(error) => Err(error),
        };
        let may_be_left = match &outcome {
            Ok(Acquired::Granted { .. }) => false,
            Ok(Acquired::Held { .. }) => bid.uncertain.is_some(),
            Err(AcquireError::Store(StoreError::Unavailable(_))) if bid.uncertain.is_none() => {
                false
            }
            // Also a refusal may be one's own success, where a proxy repeats what it passes on.
            Err(_) => bid.is_sent,
        };
        if may_be_left {
            // The task finishes by itself.
            let _settled = self.settle_bid(&bid);
        }
        outcome
    }

    /// One try. Where the holder's session looks as if it had expired, the try continues until that is
    /// proven or disproven, at most for 1.05 of its TTL. An agent that makes one try only does not
    /// observe the silence for long enough otherwise, and the lock would never be taken over.
    async fn take_or_prove_dead(&self, bid: &mut Bid) -> Result<Taken, AcquireError> {
        loop {
            let taken = self.take(bid).await?;
            let Taken::Others(Outlook {
                dead_at: Some(dead_at),
                ..
            }) = taken
            else {
                return Ok(taken);
            };
            if self.is_draining() {
                return Ok(taken);
            }
            // A session that lives is renewed in each third of its TTL; the lock may be released, too.
            let look = self.now().after(self.0.config.session_ttl.get() / 10);
            self.until_or_stop(look.min(dead_at)).await;
        }
    }

    /// The answer to a request whose `requestId` was answered before.
    ///
    /// The same request gets the same lease. When that is over, taking the lock again would give
    /// it to an app that may have done its work and gone: a late repetition is told so. None when
    /// the lease was forgotten meanwhile.
    pub(super) fn answer_repeated(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<Option<Acquired>, AcquireError> {
        let Some(key) = RequestKey::of(request) else {
            return Ok(None);
        };
        let now = self.now();
        let answered = self.state().core.history.answer(&key, now);
        let Some(answered) = answered else {
            return Ok(None);
        };
        let is_another = |(life, keep, metadata): (Life, Duration, BTreeMap<String, String>)| {
            (life, keep, &metadata) != request.body()
        };
        if answered.body.is_some_and(is_another) {
            return Err(AcquireError::RequestIdReused);
        }
        match self.replay(&answered.lease, arrived) {
            Ok(lease) => Ok(Some(Acquired::Granted {
                lease,
                replayed: true,
            })),
            Err(LeaseError::Unknown) => Ok(None),
            Err(why) => Err(AcquireError::RequestEnded {
                lease: answered.lease,
                why,
            }),
        }
    }

    /// What the agent can answer by itself: a repeated request, or a lock that it serves already.
    fn answer_locally(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<Option<Acquired>, AcquireError> {
        if let Some(answer) = self.answer_repeated(request, arrived)? {
            return Ok(Some(answer));
        }
        self.with_leases(|leases| leases.end_if_over(&request.resource));
        let is_here = {
            let state = self.state();
            let is_for_line = state.someone_is_in_line(&request.resource, self.now());
            let own = &state.core.own;
            own.held(&request.resource).is_some()
                || (is_for_line && own.warm(&request.resource).is_some())
        };
        Ok(if is_here {
            self.held_here(&request.resource, false)
        } else {
            None
        })
    }

    /// The lock names our grant: makes a lease of it, if the token may be told and the session
    /// still stands.
    pub(super) async fn make_lease(
        &self,
        bid: &Bid,
        stored: Stored<Lock>,
        arrived: Moment,
    ) -> Result<LeaseView, AcquireError> {
        let stored = self.raise_if_restored(stored, bid).await?;
        let grant = bid.key().ok_or(AcquireError::SessionLost)?;
        self.with_state(|state| {
            let under_way = state.under_way.get(&bid.request.resource);
            let new = NewLease {
                request: &bid.request,
                arrived,
                grant,
                stored,
                gone_at: under_way.and_then(|under_way| under_way.gone_at),
            };
            self.step(state, |core, cx| begun::begin(&mut core.leases(cx), new))
        })
    }
}

/// What to say of a kept lock that was not given.
fn explain_kept(outcome: Acquired, words: &str) -> Acquired {
    match outcome {
        Acquired::Held {
            holder,
            queue_length,
            hint: None,
        } if holder.kept => Acquired::Held {
            holder,
            queue_length,
            hint: Some(words.into()),
        },
        outcome => outcome,
    }
}
