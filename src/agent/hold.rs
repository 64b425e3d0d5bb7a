//! A lock that is held for as long as a connection: the caller waits without a limit, has a lease that
//! no silence ends, and releases it by closing the connection.
//!
//! The release is at once, but where readers of an election were told of the lease (`election`). The end of
//! `maxHoldSeconds` is fixed: no event claims validity beyond it, and the app is asked to release before.
//!
//! The core acquires the lock. Invariant: from the moment that the lease is answered, a guard has it;
//! dropping the [`Hold`] at any time hangs up or starts the release.

use std::pin::Pin;
use std::time::Duration;

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::time::Moment;

use super::events::{LeaseEvent, LeaseEvents, StreamPlace};
use super::{AcquireError, AcquireRequest, Acquired, Agent};

type Acquiring = Pin<Box<dyn Future<Output = Result<Acquired, AcquireError>> + Send>>;

/// A lock that is waited for or held, with its events. Dropping it is releasing.
pub struct Hold {
    agent: Agent,
    resource: Resource,
    arrived: Moment,
    stage: Stage,
}

enum Stage {
    /// Waiting.
    Waiting(Waiting),
    /// The lease is had. Its events come before its guard: they are dropped in this order.
    Holding(LeaseEvents, Guard),
    /// Waiting came to nothing, and nobody was told yet.
    Failed(AcquireError),
    /// The last event was given.
    Over,
}

struct Waiting {
    /// The call; dropping it is hanging up.
    acquiring: Acquiring,
    /// When the next event is due.
    due: Moment,
    place: StreamPlace,
}

/// A lease whose connection is there.
struct Guard {
    agent: Agent,
    lease: LeaseId,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.agent.release_hung_up(&self.lease);
    }
}

impl Agent {
    /// Takes a lock for a connection, however long that waits for it: the lock is released when
    /// the answer is dropped. It comes when it is known whether the lock is had or waited for.
    ///
    /// # Errors
    /// [`AcquireError`] when neither can be; nothing is held through this request then.
    pub async fn hold(
        &self,
        request: AcquireRequest,
        arrived: Moment,
    ) -> Result<Hold, AcquireError> {
        let place = self.stream_place()?;
        let request = AcquireRequest {
            wait: Duration::MAX,
            request_id: None,
            ..request
        };
        let agent = self.clone();
        let mut hold = Hold {
            agent: self.clone(),
            resource: request.resource.clone(),
            arrived,
            stage: Stage::Waiting(Waiting {
                acquiring: Box::pin(async move { agent.acquire(request, arrived).await }),
                due: arrived,
                place,
            }),
        };
        hold.begin().await?;
        Ok(hold)
    }

    /// Who has a lock that callers wait for, and how many wait; none while that is not known.
    fn outlook_of(&self, resource: &Resource) -> Option<Acquired> {
        self.state().core.acquiring.held(resource).cloned()
    }
}

impl Hold {
    /// The next event; none when the stream is over. The lease is over then, too.
    pub async fn next(&mut self) -> Option<LeaseEvent> {
        loop {
            match &mut self.stage {
                Stage::Waiting(waiting) => {
                    let heartbeat_at = waiting.due;
                    tokio::select! {
                        biased;
                        outcome = &mut waiting.acquiring => self.stop_waiting(outcome),
                        () = self.agent.sleep_until(heartbeat_at) => {
                            // Timers only wake.
                            let now = self.agent.now();
                            if now >= heartbeat_at {
                                waiting.due = now.after(self.agent.heartbeat_interval());
                                return Some(self.still_waiting());
                            }
                        }
                    }
                }
                Stage::Holding(events, _guard) => {
                    let event = events.next().await;
                    if event.is_none() {
                        self.stage = Stage::Over;
                    }
                    return event;
                }
                Stage::Failed(_) => return self.take_failure().map(LeaseEvent::Failed),
                Stage::Over => return None,
            }
        }
    }

    /// Waits until it is known what the first event is.
    async fn begin(&mut self) -> Result<(), AcquireError> {
        while let Stage::Waiting(waiting) = &mut self.stage {
            // Made before the core is asked, so no change in between is missed.
            let heard = self.agent.0.outlook_changed.notified();
            if self.agent.outlook_of(&self.resource).is_some() {
                return Ok(());
            }
            tokio::select! {
                biased;
                outcome = &mut waiting.acquiring => self.stop_waiting(outcome),
                () = heard => {}
            }
        }
        self.take_failure().map_or(Ok(()), Err)
    }

    /// The core has answered. No await comes between its answer and the guard.
    fn stop_waiting(&mut self, outcome: Result<Acquired, AcquireError>) {
        let Stage::Waiting(waiting) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return;
        };
        self.stage = match outcome {
            Ok(Acquired::Granted { lease, .. }) => {
                let guard = Guard {
                    agent: self.agent.clone(),
                    lease: lease.lease.clone(),
                };
                let place = waiting.place;
                let agent = &self.agent;
                match agent.open_stream(&lease.lease, self.arrived, LeaseEvent::Acquired, place) {
                    Some(events) => Stage::Holding(events, guard),
                    // Lost before anybody was told of it.
                    None => Stage::Failed(AcquireError::GrantEnded),
                }
            }
            // Its time is never up.
            Ok(Acquired::Held { .. }) => Stage::Failed(AcquireError::GrantEnded),
            Err(error) => Stage::Failed(error),
        };
    }

    fn take_failure(&mut self) -> Option<AcquireError> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Failed(error) => Some(error),
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    fn still_waiting(&self) -> LeaseEvent {
        let (holder, queue_length) = match self.agent.outlook_of(&self.resource) {
            Some(Acquired::Held {
                holder,
                queue_length,
                ..
            }) => (Some(holder), queue_length),
            _ => (None, 0),
        };
        LeaseEvent::Waiting {
            resource: self.resource.clone(),
            holder,
            queue_length,
        }
    }
}
