//! What an app hears of its lease without asking: streams of events.
//!
//! An event is made when the connection can take it, from what is true then (`plan` decides). None
//! is kept for later, so a reader that stands still costs nothing here, and hears the newest state
//! when it goes on. Invariant: what an event says of validity is recorded in the lease before the
//! event is given, and counts from the arrival of the request that opened the stream; so one that
//! is read late claims nothing that was not promised. A reader that was slow is told how the lease ended
//! last.

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::time::Moment;

use super::api::{HeldView, HoldError, LeaseError, LeaseView, TooManyStreams};
use super::core::history::End;
pub use super::core::stream::Request;
use super::core::stream::{Cursor, Event, Next, Over, Status};
use super::core::{Core, answers};
use super::driver::Driver;
use super::streams::{Follower, StreamPermit};

/// Something that an app is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// Another has the lock, and the caller waits for it.
    Waiting {
        /// What it waits for.
        resource: Resource,
        /// What keeps it from the caller; none while that is not known.
        held: Option<Box<HeldView>>,
        /// The time of the event.
        at: Moment,
    },
    /// The lock is the caller's.
    Acquired(LeaseView),
    /// The lease goes on.
    Heartbeat(LeaseView),
    /// The session cannot be renewed, and less than half of its validity is left.
    AtRisk(LeaseView),
    /// The app is asked to release.
    ReleaseRequested(LeaseView, Request),
    /// The lease is over. The last event.
    Lost(LeaseId, Loss),
    /// The wait ended without a lease. The last event.
    Failed(HoldError),
}

/// Why there is no stream of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventsError {
    /// There is no such lease, or no more.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// As many streams are open as may be.
    #[error(transparent)]
    TooManyStreams(#[from] TooManyStreams),
}

/// The events of a lease. Dropping it ends nothing but the stream.
pub struct LeaseEvents {
    driver: Driver,
    follower: Follower,
    lease: LeaseId,
    /// When the request that opened the stream arrived; what is told counts from there.
    arrived: Moment,
    cursor: Cursor,
    opening: fn(LeaseView) -> LeaseEvent,
    _permit: StreamPermit,
}

impl LeaseEvents {
    /// Opens the stream of a lease.
    pub(super) fn open(
        driver: &Driver,
        lease: &LeaseId,
        arrived: Moment,
    ) -> Result<Self, EventsError> {
        // Whether there is such a lease, and how it ended, is answered as any question is.
        driver.with_leases(|leases| answers::read(leases, lease, arrived))?;
        let permit = driver.streams.permit()?;
        let events = Self::of_served(driver, lease, arrived, LeaseEvent::Heartbeat, permit);
        Ok(events.ok_or(LeaseError::Unknown)?)
    }

    /// The events of a lease that is served; none when there is no such lease any more.
    pub(super) fn of_served(
        driver: &Driver,
        lease: &LeaseId,
        arrived: Moment,
        opening: fn(LeaseView) -> LeaseEvent,
        permit: StreamPermit,
    ) -> Option<Self> {
        let is_served = {
            let state = driver.state();
            let held = state.core.own.lease(lease);
            held.is_some_and(|held| held.closing.is_none())
        };
        is_served.then(|| Self {
            driver: driver.clone(),
            follower: driver.streams.follow(lease),
            lease: lease.clone(),
            arrived,
            cursor: Cursor::default(),
            opening,
            _permit: permit,
        })
    }

    /// The next event; none when the stream is over.
    pub async fn next(&mut self) -> Option<LeaseEvent> {
        loop {
            // Made before the state is read: what changes in between is not missed.
            let driver = self.driver.clone();
            let changed = driver.streams_changed.notified();
            let over = self.follower.over();
            if driver.has_left() {
                return None;
            }
            // Also a lease of a session that is over by now has ended.
            driver.with_leases(|leases| leases.end_by_clock(&self.lease));
            let Some(status) = self.status() else {
                // Its followers are woken again when that is known.
                over.await;
                continue;
            };
            self.cursor.observe(&status);
            let now = driver.now();
            let interval = driver.heartbeat_interval();
            match self.cursor.plan_next(&status, interval, now) {
                Next::Send(event) => {
                    if let Some(event) = self.say(event, now) {
                        return Some(event);
                    }
                }
                Next::End => return None,
                Next::Wait(until) => tokio::select! {
                    biased;
                    () = over => {}
                    () = changed => {}
                    () = driver.sleep_until(until) => {}
                },
            }
        }
    }

    /// Tells the app. None when the lease was over before it could be told: that comes next.
    fn say(&mut self, event: Event, now: Moment) -> Option<LeaseEvent> {
        self.cursor.record(event.clone(), now);
        if let Event::Lost(loss) = event {
            return Some(LeaseEvent::Lost(self.lease.clone(), loss));
        }
        let (lease, arrived) = (&self.lease, self.arrived);
        let read = self
            .driver
            .with_leases(|leases| answers::read(leases, lease, arrived));
        let view = match read {
            Ok(view) => view,
            // A stopping agent's last told deadline has passed, and nobody ended the lease yet.
            Err(LeaseError::Lost(_))
                if self.driver.state().core.own.is_unexplained(&self.lease) =>
            {
                return None;
            }
            Err(LeaseError::Lost(loss)) => {
                self.cursor.record(Event::Lost(loss), now);
                return Some(LeaseEvent::Lost(self.lease.clone(), loss));
            }
            Err(LeaseError::Released | LeaseError::Resuming | LeaseError::Unknown) => return None,
        };
        Some(match event {
            Event::Opening => (self.opening)(view),
            Event::AtRisk => LeaseEvent::AtRisk(view),
            Event::Requested(request) => LeaseEvent::ReleaseRequested(view, request),
            Event::Heartbeat | Event::Lost(_) => LeaseEvent::Heartbeat(view),
        })
    }

    /// What is known of the lease; none while it is over and looked up why.
    fn status(&self) -> Option<Status> {
        let ttl = self.driver.config.session_ttl;
        let state = self.driver.state();
        let is_stopping = state.is_draining();
        let served = state.core.own.lease(&self.lease).zip(state.session());
        let Some((held, live)) = served.filter(|(held, _)| held.closing.is_none()) else {
            if state.core.own.is_unexplained(&self.lease) {
                return None;
            }
            return Some(Status {
                over: Some(over(&state.core, &self.lease)),
                is_stopping,
                asked: None,
                risk_at: None,
                warn_at: None,
                ends_at: Moment::default(),
            });
        };
        let told_until = held.lease.told_until();
        let over_by_stop = is_stopping && self.driver.now() >= told_until;
        let (session_until, is_failing) = (live.valid_until(), live.is_failing());
        Some(Status {
            over: over_by_stop.then_some(Over::Lost(Loss::AgentStopping)),
            is_stopping,
            asked: held.release_request().cloned(),
            risk_at: is_failing.then(|| session_until.before(ttl.holder_share() / 2)),
            warn_at: held.warn_at(ttl.period()),
            ends_at: if is_stopping {
                told_until
            } else {
                session_until.min(held.lease.gives_up_at())
            },
        })
    }
}

/// How a lease has ended, as its streams report it.
fn over(core: &Core, lease: &LeaseId) -> Over {
    match core.history.end(lease) {
        _ if core.own.was_stopped(lease) => Over::Lost(Loss::AgentStopping),
        Some(End::Lost(loss)) => Over::Lost(loss),
        // Its app ended it, or that is so long ago that it is not known any more.
        Some(End::Released | End::Releasing) | None => Over::Released,
    }
}
