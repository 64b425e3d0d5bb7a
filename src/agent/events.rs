//! What an app hears of its lease without asking: streams of events.
//!
//! An event is made when the connection can take it, from what is true then (`plan` decides). None
//! is kept for later, so a reader that stands still costs nothing here, and hears the newest state
//! when it goes on. Invariant: what an event says of validity is recorded in the lease before the
//! event is given, and counts from the arrival of the request that opened the stream; so one that
//! is read late claims nothing that was not promised. A reader that was slow is told how the lease ended
//! last.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::time::Moment;

use super::core::Core;
use super::core::history::End;
pub use super::core::stream::Request;
use super::core::stream::{Cursor, Event, Next, Over, Status};
use super::{AcquireError, Agent, HolderView, LeaseError, LeaseView, TooManyStreams};

/// Something that an app is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// Another has the lock, and the caller waits for it.
    Waiting {
        /// What it waits for.
        resource: Resource,
        /// Who has it; none while that is not known.
        holder: Option<HolderView>,
        /// How many wait for it.
        queue_length: usize,
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
    /// Waiting came to nothing. The last event.
    Failed(AcquireError),
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
    agent: Agent,
    follower: Follower,
    lease: LeaseId,
    /// When the request that opened the stream arrived; what is told counts from there.
    arrived: Moment,
    cursor: Cursor,
    opening: fn(LeaseView) -> LeaseEvent,
    _place: StreamPlace,
}

/// The streams that are open.
#[derive(Default)]
pub(super) struct Streams {
    /// How many there are.
    pub(super) open: usize,
    /// Wakes those of each lease when it is over, and no others: there are many of both.
    followers: BTreeMap<LeaseId, Arc<Notify>>,
}

impl Streams {
    /// A lease is over.
    pub(super) fn wake(&self, lease: &LeaseId) {
        if let Some(followers) = self.followers.get(lease) {
            followers.notify_waiters();
        }
    }
}

/// One that is woken when its lease is over.
pub(super) struct Follower {
    agent: Agent,
    lease: LeaseId,
    over: Arc<Notify>,
}

impl Follower {
    /// Answers when the lease is over, or it becomes known why. To be made before that is checked.
    pub(super) fn over(&self) -> OwnedNotified {
        self.over.clone().notified_owned()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut state = self.agent.state();
        // The last one besides the map.
        if Arc::strong_count(&self.over) == 2 {
            state.streams.followers.remove(&self.lease);
        }
    }
}

/// One of the streams that may be open at once.
pub(super) struct StreamPlace(Agent);

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.0.state().streams.open -= 1;
    }
}

impl Agent {
    /// The events of a lease. They are no sign of its app's life, and it does not end with them.
    ///
    /// # Errors
    /// [`EventsError`] when there is no such lease, or no room for a stream.
    pub fn events(&self, lease: &LeaseId, arrived: Moment) -> Result<LeaseEvents, EventsError> {
        // Whether there is such a lease, and how it ended, is answered as any question is.
        self.lease(lease, arrived)?;
        let place = self.stream_place()?;
        let events = self.open_stream(lease, arrived, LeaseEvent::Heartbeat, place);
        Ok(events.ok_or(LeaseError::Unknown)?)
    }

    /// The events of a lease that is served; none when there is no such lease any more.
    pub(super) fn open_stream(
        &self,
        lease: &LeaseId,
        arrived: Moment,
        opening: fn(LeaseView) -> LeaseEvent,
        place: StreamPlace,
    ) -> Option<LeaseEvents> {
        let is_served = {
            let state = self.state();
            let held = state.core.own.lease(lease);
            held.is_some_and(|held| held.closing.is_none())
        };
        is_served.then(|| LeaseEvents {
            agent: self.clone(),
            follower: self.follow(lease),
            lease: lease.clone(),
            arrived,
            cursor: Cursor::default(),
            opening,
            _place: place,
        })
    }

    /// Follows a lease to its end.
    pub(super) fn follow(&self, lease: &LeaseId) -> Follower {
        let mut state = self.state();
        let followers = state.streams.followers.entry(lease.clone());
        Follower {
            agent: self.clone(),
            lease: lease.clone(),
            over: followers.or_default().clone(),
        }
    }

    /// Room for one more stream.
    pub(super) fn stream_place(&self) -> Result<StreamPlace, TooManyStreams> {
        let limit = self.0.config.max_streams;
        let mut state = self.state();
        if state.streams.open >= limit {
            return Err(TooManyStreams { limit });
        }
        state.streams.open += 1;
        drop(state);
        Ok(StreamPlace(self.clone()))
    }

    /// How often a stream says that all is well. A little more often than every third of the TTL:
    /// timers are late.
    pub(super) fn heartbeat_interval(&self) -> Duration {
        self.0.config.session_ttl.get() * 3 / 10
    }
}

impl LeaseEvents {
    /// The next event; none when the stream is over.
    pub async fn next(&mut self) -> Option<LeaseEvent> {
        loop {
            // Made before the state is read: what changes in between is not missed.
            let agent = self.agent.clone();
            let changed = agent.0.streams_changed.notified();
            let over = self.follower.over();
            if agent.has_left() {
                return None;
            }
            // Also a lease of a session that is over by now has ended.
            agent.with_leases(|leases| leases.end_by_clock(&self.lease));
            let Some(status) = self.status() else {
                // Its followers are woken again when that is known.
                over.await;
                continue;
            };
            self.cursor.observe(&status);
            let now = agent.now();
            let interval = agent.heartbeat_interval();
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
                    () = agent.sleep_until(until) => {}
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
        let view = match self.agent.lease(&self.lease, self.arrived) {
            Ok(view) => view,
            // A stopping agent's last told deadline has passed, and nobody ended the lease yet.
            Err(LeaseError::Lost(_)) if self.agent.state().core.own.is_unexplained(&self.lease) => {
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
        let ttl = self.agent.0.config.session_ttl;
        let state = self.agent.state();
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
        let over_by_stop = is_stopping && self.agent.now() >= told_until;
        let (session_until, is_failing) = (live.valid_until(), live.is_failing());
        Some(Status {
            over: over_by_stop.then_some(Over::Lost(Loss::AgentStopping)),
            is_stopping,
            asked: held.release_request().cloned(),
            risk_at: is_failing.then(|| session_until.before(ttl.holder_share() / 2)),
            warn_at: held.warn_at(ttl.get()),
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
