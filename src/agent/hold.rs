//! A lock that is held for as long as a connection. Its lease needs no renewals by the app, and closing
//! the connection releases it.
//!
//! The release is at once, but where readers of an election were told of the lease (`election`). The end of
//! `maxHoldSeconds` is fixed: no event claims validity beyond it, and the app is asked to release before.
//!
//! The core acquires the lock. Invariant: from the moment that the lease is answered, a guard has it;
//! dropping the [`Hold`] at any time hangs up or starts the release.

use std::future::ready;
use std::pin::Pin;
use std::time::Duration;

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::time::Moment;

use super::acquire::acquire;
use super::api::{AcquireError, AcquireRequest, Acquired, HoldError};
use super::driver::Driver;
use super::events::{LeaseEvent, LeaseEvents};
use super::release::release_hung_up;
use super::streams::StreamPermit;

type Acquiring = Pin<Box<dyn Future<Output = Result<Acquired, AcquireError>> + Send>>;

/// A lock that is waited for or held, with its events. Dropping it is releasing.
pub struct Hold {
    driver: Driver,
    resource: Resource,
    /// How long the request waits for the lock; zero for a try.
    wait: Duration,
    arrived: Moment,
    stage: Stage,
}

enum Stage {
    /// Waiting.
    Waiting(Waiting),
    /// The lease is had. Its events come before its guard: they are dropped in this order.
    Holding(LeaseEvents, Guard),
    /// The wait ended without a lease, and the caller was not notified yet.
    Failed(HoldError),
    /// The last event was given.
    Over,
}

struct Waiting {
    /// The call; dropping it is hanging up.
    acquiring: Acquiring,
    /// When the next event is due.
    due: Moment,
    permit: StreamPermit,
}

/// A lease whose connection is there.
struct Guard {
    driver: Driver,
    lease: LeaseId,
}

impl Drop for Guard {
    fn drop(&mut self) {
        release_hung_up(&self.driver, &self.lease);
    }
}

impl Hold {
    /// Requests the lock, and waits until the first event is known. A try has no event before its outcome.
    pub(super) async fn open(
        driver: &Driver,
        request: AcquireRequest,
        arrived: Moment,
    ) -> Result<Self, HoldError> {
        let permit = driver.streams.permit().map_err(AcquireError::from)?;
        let request = AcquireRequest {
            request_id: None,
            ..request
        };
        let asking = driver.clone();
        let mut hold = Self {
            driver: driver.clone(),
            resource: request.resource.clone(),
            wait: request.wait,
            arrived,
            stage: Stage::Waiting(Waiting {
                acquiring: Box::pin(async move { acquire(&asking, request, arrived).await }),
                due: arrived,
                permit,
            }),
        };
        hold.begin().await?;
        Ok(hold)
    }

    /// The next event; none when the stream is over. The lease is over then, too.
    pub async fn next(&mut self) -> Option<LeaseEvent> {
        loop {
            match &mut self.stage {
                Stage::Waiting(waiting) => {
                    let heartbeat_at = waiting.due;
                    tokio::select! {
                        biased;
                        outcome = &mut waiting.acquiring => self.stop_waiting(outcome),
                        () = self.driver.sleep_until(heartbeat_at) => {
                            // Timers only wake.
                            let now = self.driver.now();
                            if now >= heartbeat_at {
                                waiting.due = now.after(self.driver.heartbeat_interval());
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

    /// Waits until the first event is known.
    async fn begin(&mut self) -> Result<(), HoldError> {
        while let Stage::Waiting(waiting) = &mut self.stage {
            // Created before the outlook is read, so no change in between is missed.
            let changed = self.driver.outlook_changed.notified();
            let is_waiting =
                !self.wait.is_zero() && outlook_of(&self.driver, &self.resource).is_some();
            tokio::select! {
                // The outcome is first: if the wait is already over, no stream begins.
                biased;
                outcome = &mut waiting.acquiring => self.stop_waiting(outcome),
                () = ready(()), if is_waiting => return Ok(()),
                () = changed => {}
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
                    driver: self.driver.clone(),
                    lease: lease.lease.clone(),
                };
                let (driver, permit) = (&self.driver, waiting.permit);
                let opening = LeaseEvent::Acquired;
                match LeaseEvents::of_served(driver, &lease.lease, self.arrived, opening, permit) {
                    Some(events) => Stage::Holding(events, guard),
                    // Lost before anybody was told of it.
                    None => Stage::Failed(AcquireError::GrantEnded.into()),
                }
            }
            Ok(Acquired::Held(held)) => Stage::Failed(HoldError::Held {
                resource: self.resource.clone(),
                held,
                wait: self.wait,
                at: self.driver.now(),
            }),
            Err(error) => Stage::Failed(error.into()),
        };
    }

    fn take_failure(&mut self) -> Option<HoldError> {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Failed(error) => Some(error),
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    fn still_waiting(&self) -> LeaseEvent {
        let held = match outlook_of(&self.driver, &self.resource) {
            Some(Acquired::Held(held)) => Some(held),
            _ => None,
        };
        LeaseEvent::Waiting {
            resource: self.resource.clone(),
            held,
            at: self.driver.now(),
        }
    }
}

/// Who has a lock that callers wait for, and how many wait; none while that is not known.
fn outlook_of(driver: &Driver, resource: &Resource) -> Option<Acquired> {
    driver.state().core.acquiring.held(resource).cloned()
}
