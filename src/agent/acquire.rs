//! Requests for locks: each waits for the core's answer, and tells the core if its client hangs up.

use tokio::sync::oneshot;

use crate::protocol::ids::LeaseId;
use crate::protocol::time::Moment;
use crate::store::StoreError;

use super::core::effect::{CallId, Input, Reply};
use super::{AcquireError, AcquireRequest, Acquired, Agent};

/// An answer of the core on its way to the caller, which may hang up before it arrives.
pub(super) struct Answered {
    agent: Agent,
    reply: Option<Reply>,
}

impl Answered {
    pub(super) fn new(agent: &Agent, reply: Reply) -> Self {
        Self {
            agent: agent.clone(),
            reply: Some(reply),
        }
    }

    /// It has arrived.
    pub(super) fn take(mut self) -> Option<Reply> {
        self.reply.take()
    }
}

impl Drop for Answered {
    fn drop(&mut self) {
        if let Some(Reply::Acquired(outcome)) = self.reply.take()
            && let Ok(Acquired::Granted {
                lease,
                replayed: false,
            }) = *outcome
        {
            self.agent.undelivered(lease.lease);
        }
    }
}

/// A call that waits for its answer. Dropping it is hanging up.
struct Waiting {
    agent: Agent,
    call: CallId,
    is_answered: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_answered {
            self.agent.feed(Input::HangUp(self.call));
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
        let count = request.clone();
        let outcome = match self.ask_core(request, arrived).await {
            Err(AcquireError::RequestEnded { lease, why }) => {
                let why = self.explained(&lease, why).await;
                Err(AcquireError::RequestEnded { lease, why })
            }
            outcome => outcome,
        };
        self.count_acquire(&count, arrived, &outcome);
        outcome
    }

    async fn ask_core(
        &self,
        request: AcquireRequest,
        arrived: Moment,
    ) -> Result<Acquired, AcquireError> {
        let (call, answer): (_, oneshot::Receiver<Answered>) = self.with_state(|state| {
            let (call, answer) = state.expect_reply();
            let input = Input::Acquire(call, Box::new(request), arrived);
            self.step(state, |core, cx| core.handle(cx, input));
            (call, answer)
        });
        // Dropped after the receiver, so that an answer that came meanwhile is dropped first.
        let mut waiting = Waiting {
            agent: self.clone(),
            call,
            is_answered: false,
        };
        let answered = answer.await;
        waiting.is_answered = true;
        match answered.ok().and_then(Answered::take) {
            Some(Reply::Acquired(outcome)) => *outcome,
            Some(Reply::Done) | None => Err(AcquireError::Store(StoreError::Ambiguous(
                "the wait was cut off".into(),
            ))),
        }
    }

    /// No client received the answer with this lease.
    fn undelivered(&self, lease: LeaseId) {
        if !self.has_left() {
            self.feed(Input::Undelivered(lease));
        }
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
}
