//! A bid for a lock: what a grant is wanted for, from before its first write until it is had or
//! given up.
//!
//! No I/O but what the session needs. Invariant: the grant's id and the session stay the same
//! through a bid's life, because a write of unknown outcome carries both.

use tokio::sync::oneshot;

use crate::protocol::ids::{GrantId, Resource, SessionId};
use crate::protocol::key::{GrantKey, SessionKey};
use crate::protocol::lock::Claim;
use crate::protocol::session::Claimant;
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::core::effect::Reply;
use super::core::history::RequestKey;
pub(super) use super::core::leftover::Uncertain;
use super::state::State;
use super::{AcquireError, AcquireRequest, Acquired, Agent};

/// An attempt under way, for as long as this lives: the session is not ended under it, its grant
/// is not taken for an orphan, and a repetition of its request waits for it.
pub(super) struct Attempt {
    agent: Agent,
    grant: GrantId,
    resource: Resource,
    key: Option<RequestKey>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let now = self.agent.now();
        let mut state = self.agent.state();
        state.in_flight -= 1;
        state.claimed.remove(&self.grant);
        if let Some(under_way) = state.under_way.get_mut(&self.resource) {
            under_way.attempts -= 1;
            if under_way.attempts == 0 {
                state.under_way.remove(&self.resource);
            }
        }
        if let Some(key) = &self.key {
            state.asked.remove(key);
        }
        state.idle_since = now;
        drop(state);
        self.agent.0.something_ended.notify_waiters();
    }
}

impl Attempt {
    /// The grant that the attempt is for.
    pub(super) fn grant(&self) -> &GrantId {
        &self.grant
    }
}

/// What a grant is wanted for, from before the first write until it is had or given up.
pub(super) struct Bid {
    /// Who asks. Another app of the pod may step into its place.
    pub(super) request: AcquireRequest,
    /// Whether to stand in the lock's queue while somebody else holds it.
    pub(super) waits: bool,
    attempt: Attempt,
    /// With which session; fixed by the first write, because a grant of another session of this
    /// agent is another grant.
    session: Option<SessionId>,
    /// What the store listed in the course of this; a session that begins now need not ask again.
    pub(super) listed: Option<Revision>,
    /// The version at which the lock was last seen.
    pub(super) seen: Option<Revision>,
    /// Whether the store refused the last join because the queue is full.
    pub(super) queue_was_full: bool,
    /// How often it found no room in the queue.
    pub(super) pauses: u32,
    /// How often the lock had been granted then, and since when that is known.
    pub(super) turns: Option<(u64, Moment)>,
    /// Whether any write was sent: then the store may hold something for the grant.
    pub(super) is_sent: bool,
    /// The last write whose outcome is not known.
    pub(super) uncertain: Option<Uncertain>,
}

impl Bid {
    pub(super) fn new(request: AcquireRequest, attempt: Attempt, waits: bool) -> Self {
        Self {
            request,
            waits,
            attempt,
            session: None,
            listed: None,
            seen: None,
            queue_was_full: false,
            pauses: 0,
            turns: None,
            is_sent: false,
            uncertain: None,
        }
    }

    /// The same bid, for another caller of this pod or the same one.
    pub(super) fn continued(self, request: AcquireRequest) -> Self {
        Self { request, ..self }
    }

    /// The grant that is wanted.
    pub(super) fn grant(&self) -> &GrantId {
        self.attempt.grant()
    }

    /// A place in the queue was asked for: with success, or nobody knows.
    pub(super) fn note_join(&mut self, is_known: bool) {
        let again = matches!(self.uncertain, Some(Uncertain::Join { .. }));
        if again || !is_known {
            self.uncertain = Some(Uncertain::Join { again });
        }
    }

    /// The session with which the grant is wanted; none before the first write.
    pub(super) fn session(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    /// The same, as this pod's.
    pub(super) fn session_key(&self) -> Option<SessionKey> {
        Some(self.attempt.agent.own(self.session.as_ref()?))
    }

    /// The grant that is wanted, as this pod's; none before the first write.
    pub(super) fn key(&self) -> Option<GrantKey> {
        Some(GrantKey {
            id: self.grant().clone(),
            session: self.session_key()?,
        })
    }
}

/// Whether a try may begin.
pub(super) enum Begun {
    /// It may.
    Attempt(Attempt),
    /// The same request is tried already.
    UnderWay,
    /// The same request stands in line.
    Waits,
}

impl From<Acquired> for Outlook {
    /// Nothing is known of the holder's session.
    fn from(held: Acquired) -> Self {
        Self {
            held,
            look_again: None,
            dead_at: None,
        }
    }
}

/// What somebody who cannot have the lock yet is told, and when there is more to be known.
#[derive(Clone, Debug)]
pub(super) struct Outlook {
    /// Who holds it.
    pub(super) held: Acquired,
    /// When there is more to be known of a holder that stays silent.
    pub(super) look_again: Option<Moment>,
    /// When the holder's session will be proven dead, where it looks as if it were.
    pub(super) dead_at: Option<Moment>,
}

impl Agent {
    /// Counts a new attempt, unless the same request is being served.
    pub(super) fn begin_attempt(&self, request: &AcquireRequest) -> Result<Begun, AcquireError> {
        let limit = self.0.config.max_leases;
        let key = RequestKey::of(request);
        let mut state = self.state();
        if state.is_draining() {
            return Err(AcquireError::ShuttingDown);
        }
        if key.as_ref().is_some_and(|key| state.asked.contains(key)) {
            return Ok(Begun::UnderWay);
        }
        if state.has_place(request)? {
            return Ok(Begun::Waits);
        }
        if state.load() >= limit {
            return Err(AcquireError::TooManyLeases { limit });
        }
        let attempt = self.attempt(&mut state, &request.resource, key);
        Ok(Begun::Attempt(attempt))
    }

    /// Counts an attempt for callers that are counted and admitted already.
    pub(super) fn begin_line_attempt(&self, resource: &Resource) -> Attempt {
        self.attempt(&mut self.state(), resource, None)
    }

    fn attempt(&self, state: &mut State, resource: &Resource, key: Option<RequestKey>) -> Attempt {
        let grant = GrantId::from(self.random().uuid().to_string());
        state.in_flight += 1;
        state.claimed.insert(grant.clone());
        let under_way = state.under_way.entry(resource.clone()).or_default();
        under_way.attempts += 1;
        state.asked.extend(key.clone());
        Attempt {
            agent: self.clone(),
            grant,
            resource: resource.clone(),
            key,
        }
    }

    /// The claim of a bid. Begins the session, or renews it if less than half of it is left.
    pub(super) async fn claim(&self, bid: &mut Bid) -> Result<Claim, AcquireError> {
        let session = self.ready_session(bid.listed).await?;
        let fixed = bid.session.get_or_insert_with(|| session.clone());
        if *fixed != session {
            return Err(AcquireError::SessionLost);
        }
        Ok(Claim {
            grant: bid.grant().clone(),
            claimant: Claimant {
                owner: bid.request.owner.clone(),
                pod: self.pod().clone(),
                session,
                session_ttl: self.0.config.session_ttl,
            },
            metadata: bid.request.metadata.clone(),
            kept: !bid.request.keep.is_zero(),
            at: self.0.clock.wall(),
            preferred: bid.request.preferred,
        })
    }

    /// Removes from the store what it may have for a claim that no caller needs any more. The receiver
    /// gets an answer when that is done.
    pub(super) fn clear_leftover(
        &self,
        resource: Resource,
        grant: GrantKey,
        uncertain: Option<Uncertain>,
    ) -> oneshot::Receiver<Reply> {
        let (call, receiver) = self.state().expect_reply();
        self.with_core(|core, cx| {
            core.look_for_leftover(cx, resource, grant, uncertain, Some(call));
        });
        receiver
    }

    /// Clears from the store what it may have for a bid that is given up. One that sent nothing has nothing
    /// there.
    pub(super) fn settle_bid(&self, bid: &Bid) -> Option<oneshot::Receiver<Reply>> {
        let grant = bid.key().filter(|_| bid.is_sent)?;
        let resource = bid.request.resource.clone();
        Some(self.clear_leftover(resource, grant, bid.uncertain))
    }

    /// The deadline is looked at again after every wait.
    pub(super) fn check_session(&self, bid: &Bid) -> Result<(), AcquireError> {
        let deadline = bid.session().and_then(|id| self.session_deadline(id));
        match deadline {
            Some(deadline) if self.now() < deadline => Ok(()),
            _ => Err(AcquireError::SessionLost),
        }
    }
}
