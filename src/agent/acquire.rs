//! An app's request for a lock: answered from what the agent knows, or by a try at the store that
//! ends with a lease, a refusal, or nothing held.
//!
//! What it does not do: read or write the lock (`take` does). Invariant: a grant is the caller's
//! lease, or it is released; a caller that hung up and a try that ended without knowing whether
//! its write landed each leave a task behind that sees to it.

use crate::protocol::ids::{GrantId, SessionId};
use crate::protocol::lease::Tenure;
use crate::protocol::lock::{Claim, Lock};
use crate::protocol::session::Claimant;
use crate::protocol::time::Moment;
use crate::store::{StoreError, Stored};

use super::state::{Answered, Held, RequestKey};
use super::take::Taken;
use super::types::Span;
use super::{AcquireError, AcquireRequest, Acquired, Agent, HolderView, LeaseError, LeaseView};

/// An attempt under way, for as long as this lives: the session is not ended under it, its grant
/// is not taken for an orphan, and a repetition of its request waits for it.
struct Attempt {
    agent: Agent,
    grant: GrantId,
    key: Option<RequestKey>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let now = self.agent.now();
        let mut state = self.agent.state();
        state.in_flight -= 1;
        state.claimed.remove(&self.grant);
        if let Some(key) = &self.key {
            state.asked.remove(key);
        }
        state.idle_since = now;
        drop(state);
        self.agent.0.something_ended.notify_waiters();
    }
}

/// An outcome on its way to a caller who may have hung up: then the lease is released.
struct Delivery {
    agent: Agent,
    outcome: Option<Result<Acquired, AcquireError>>,
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(Ok(Acquired::Granted {
            lease,
            replayed: false,
        })) = self.outcome.take()
        {
            self.agent.release_undelivered(&lease.lease);
        }
    }
}

impl Agent {
    /// One try to take a lock. `arrived` is when the request came in.
    ///
    /// # Errors
    /// [`AcquireError`]; nothing is held through this request then.
    pub async fn acquire(
        &self,
        request: AcquireRequest,
        arrived: Moment,
    ) -> Result<Acquired, AcquireError> {
        let (send, receive) = tokio::sync::oneshot::channel();
        let agent = self.clone();
        // A task of its own: a caller that hangs up must not leave a write half understood.
        self.spawn(async move {
            let outcome = agent.acquire_and_count(&request, arrived).await;
            let delivery = Delivery {
                agent: agent.clone(),
                outcome: Some(outcome),
            };
            // Not delivered means dropped, and dropped means released.
            drop(send.send(delivery));
        });
        let delivered = receive
            .await
            .ok()
            .and_then(|mut delivery| delivery.outcome.take());
        delivered.unwrap_or_else(|| {
            Err(AcquireError::Store(StoreError::Ambiguous(
                "the try was cut off".into(),
            )))
        })
    }

    async fn acquire_and_count(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<Acquired, AcquireError> {
        let outcome = self.acquire_once(request, arrived).await;
        let name = match &outcome {
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
            Err(AcquireError::Store(error)) if error.is_transient() => "unavailable",
            Err(_) => "failed",
        };
        self.0.metrics.acquired(name, self.now().since(arrived));
        outcome
    }

    async fn acquire_once(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<Acquired, AcquireError> {
        let attempt = loop {
            let ended = self.0.something_ended.notified();
            if let Some(answer) = self.answer_locally(request, arrived)? {
                return Ok(answer);
            }
            match self.begin_attempt(request)? {
                Some(attempt) => break attempt,
                // The same request is under way; its answer will be this one's too.
                None => ended.await,
            }
        };
        let session = self.ready_session().await?;
        let claim = self.claim(request, session, attempt.grant.clone());
        let mut unsettled = None;
        let taken = self.take(&request.resource, &claim, &mut unsettled).await;
        let outcome = match taken {
            Ok(Taken::Ours(stored)) => {
                unsettled = Some(stored.version);
                let lease = self.make_lease(request, &claim, stored, arrived).await;
                lease.map(|lease| Acquired::Granted {
                    lease,
                    replayed: false,
                })
            }
            Ok(Taken::Others(held)) => Ok(held),
            Err(error) => Err(error),
        };
        let is_granted = matches!(outcome, Ok(Acquired::Granted { .. }));
        if let (false, Some(written_on)) = (is_granted, unsettled) {
            self.spawn_settle(request.resource.clone(), claim.grant, written_on);
        }
        outcome
    }

    /// What the agent can answer by itself: a repeated request, or a lock that it serves already.
    fn answer_locally(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<Option<Acquired>, AcquireError> {
        if let Some(key) = request_key(request) {
            let answered = self.state().answered(&key, self.now());
            if let Some(answered) = answered {
                return self.answer_again(request, answered, arrived);
            }
        }
        let serving = self
            .state()
            .held
            .get(&request.resource)
            .map(|held| held.lease.id.clone());
        if let Some(lease) = serving {
            self.end_if_lost(&lease);
        }
        let state = self.state();
        Ok(state
            .held
            .get(&request.resource)
            .map(|held| Acquired::Held {
                holder: HolderView {
                    owner: held.owner.clone(),
                    pod: self.pod().name.to_string(),
                    token: held.lease.token,
                    acquired_at: held.acquired_at,
                    metadata: held.metadata.clone(),
                },
                queue_length: 0,
                hint: Some("this pod holds the lock itself; locks are not reentrant".into()),
            }))
    }

    /// The same request gets the same lease. When that is over, taking the lock again would give
    /// it to an app that may have done its work and gone: a late repetition is told so. None when
    /// the lease was forgotten meanwhile.
    fn answer_again(
        &self,
        request: &AcquireRequest,
        answered: Answered,
        arrived: Moment,
    ) -> Result<Option<Acquired>, AcquireError> {
        let body = (request.ttl, request.metadata.clone());
        if answered.body.is_some_and(|answered| answered != body) {
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

    /// Counts a new attempt; none while the same request is under way.
    fn begin_attempt(&self, request: &AcquireRequest) -> Result<Option<Attempt>, AcquireError> {
        let limit = self.0.config.max_leases;
        let key = request_key(request);
        let grant = GrantId::from(uuid::Uuid::new_v4().to_string());
        let mut state = self.state();
        if state.draining {
            return Err(AcquireError::ShuttingDown);
        }
        if key.as_ref().is_some_and(|key| state.asked.contains(key)) {
            return Ok(None);
        }
        if state.load() >= limit {
            return Err(AcquireError::TooManyLeases { limit });
        }
        state.in_flight += 1;
        state.claimed.insert(grant.clone());
        state.asked.extend(key.clone());
        drop(state);
        Ok(Some(Attempt {
            agent: self.clone(),
            grant,
            key,
        }))
    }

    fn claim(&self, request: &AcquireRequest, session: SessionId, grant: GrantId) -> Claim {
        Claim {
            grant,
            claimant: Claimant {
                owner: request.owner.clone(),
                pod: self.pod().clone(),
                session,
                session_ttl: self.0.config.session_ttl,
            },
            metadata: request.metadata.clone(),
            at: self.0.clock.wall(),
        }
    }

    /// The deadline is looked at again after every wait.
    pub(super) fn check_session(&self, session: &SessionId) -> Result<(), AcquireError> {
        match self.session_deadline(session) {
            Some(deadline) if self.now() < deadline => Ok(()),
            _ => Err(AcquireError::SessionLost),
        }
    }

    /// The lock names our grant: makes a lease of it, if the token may be told and the session
    /// still stands.
    async fn make_lease(
        &self,
        request: &AcquireRequest,
        claim: &Claim,
        stored: Stored<Lock>,
        arrived: Moment,
    ) -> Result<LeaseView, AcquireError> {
        let stored = self.raise_if_restored(stored, &claim.grant).await?;
        let session = &claim.claimant.session;
        let deadline = self
            .session_deadline(session)
            .ok_or(AcquireError::SessionLost)?;
        let now = self.now();
        let mut tenure = Tenure::new(claim.grant.clone(), stored.value.token);
        let mut lease = tenure.serve(now).ok_or(AcquireError::SessionLost)?;
        let told = lease
            .tell(arrived, now, request.ttl, deadline)
            .map_err(|_loss| AcquireError::SessionLost)?;
        let held = Held {
            lease,
            tenure,
            session: session.clone(),
            owner: request.owner.clone(),
            ttl: request.ttl,
            metadata: request.metadata.clone(),
            acquired_at: claim.at,
            stored,
            since: now,
            request: request_key(request),
            replayed: false,
        };
        let view = self.view(&request.resource, &held, told, Span { arrived, now });
        {
            let mut state = self.state();
            // Who stops has counted the leases that it waits for.
            if state.draining {
                return Err(AcquireError::ShuttingDown);
            }
            // The session may have been lost since; then nobody would end this lease.
            if state.deadline_of(session).is_none() {
                return Err(AcquireError::SessionLost);
            }
            state.insert(request.resource.clone(), held);
        }
        self.wake_sweeper_for(&view.lease);
        tracing::info!(
            resource = %view.resource, ownerId = %view.owner, leaseId = %view.lease,
            fencingToken = view.token.get(), "lock acquired"
        );
        Ok(view)
    }
}

fn request_key(request: &AcquireRequest) -> Option<RequestKey> {
    request.request_id.clone().map(|request_id| RequestKey {
        owner: request.owner.clone(),
        resource: request.resource.clone(),
        request_id,
    })
}
