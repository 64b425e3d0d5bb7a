//! What one line does in the store: it takes its callers to the lock, one after the other, through
//! one place in the queue.
//!
//! A hand-over is told by the watch. The lock is read again every third of the TTL all the same:
//! a watch only makes things fast. A place that vanished is taken again, a grant that arrives for
//! nobody is released at once.
//!
//! Invariant: whatever the store may hold for a line, its queue entry or its grant, is in the
//! line's bid; a bid that is given up leaves a task behind that clears it from the store.

use std::time::Duration;

use crate::protocol::ids::Resource;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::store::{Stored, within};

use super::acquire::Delivery;
use super::bid::{Bid, Outlook};
use super::line::Front;
use super::take::Taken;
use super::{AcquireError, Acquired, Agent, Backoff, CALL_LIMIT};

/// How long a line without a place in the queue goes on while the store does not answer.
const TROUBLE_LIMIT: Duration = Duration::from_secs(5);
/// The longest pause before a full queue is tried again: beyond it, places stay empty for long.
const FULL_QUEUE_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause between two tries at a lock that others keep writing.
const CONFLICT_PAUSE: Duration = Duration::from_secs(1);

/// What a line does in the store.
#[derive(Default)]
struct Pursuit {
    bid: Option<Bid>,
    /// The lock as last seen, with our entry in its queue.
    queued: Option<Stored<Lock>>,
    /// No try before this: the pause after one that came to nothing is for the others' sake, and a
    /// caller who comes or goes does not cut it short.
    not_before: Moment,
    /// When the lock is read again.
    read_at: Moment,
    /// When its holder's session is looked at again.
    look_at: Moment,
    /// Tries in a row that came to nothing.
    tries: u32,
    /// Since when the store has not answered.
    trouble_since: Option<Moment>,
}

/// What one round came to.
enum Round {
    /// The lock is ours.
    Ours(Box<Stored<Lock>>),
    /// Not before this, unless something is told.
    Wait(Moment),
}

impl Agent {
    /// Serves the callers of one line until there are none.
    pub(super) async fn serve_line(self, resource: Resource) {
        let mut pursuit = Pursuit::default();
        loop {
            let now = self.now();
            let front = self.state().front_of(&resource, now);
            let is_stopping = self.is_draining();
            let Some(front) = front.filter(|_| !is_stopping) else {
                if is_stopping {
                    self.refuse_all(&resource, &AcquireError::ShuttingDown);
                }
                self.give_up_bid(&resource, &mut pursuit).await;
                if self.state().close_line(&resource) {
                    self.0.something_ended.notify_waiters();
                    return;
                }
                continue;
            };
            match self.pursue(&front, &mut pursuit).await {
                Ok(Round::Ours(stored)) => self.hand_out(&front, *stored, &mut pursuit).await,
                Ok(Round::Wait(until)) => self.rest(&resource, &front, until).await,
                Err(error) => self.meet_trouble(&front, error, &mut pursuit).await,
            }
        }
    }

    /// Sleeps until something is told or the callers change, at the latest until this moment.
    async fn rest(&self, resource: &Resource, front: &Front, until: Moment) {
        let changed = self.state().lines.get(resource).map(|l| l.changed.clone());
        let Some(changed) = changed else { return };
        let until = front.kept_until.map_or(until, |kept| until.min(kept));
        tokio::select! {
            () = changed.notified() => {}
            () = self.sleep_until(until) => {}
            () = self.0.stop.cancelled() => {}
        }
    }

    /// One round towards the lock: what the watch told, a read, or a look at the holder.
    async fn pursue(&self, front: &Front, pursuit: &mut Pursuit) -> Result<Round, AcquireError> {
        let mut bid = self.bid_for(front, pursuit.bid.take());
        let round = self.pursue_by(&mut bid, pursuit).await;
        pursuit.bid = Some(bid);
        round
    }

    async fn pursue_by(&self, bid: &mut Bid, pursuit: &mut Pursuit) -> Result<Round, AcquireError> {
        let resource = bid.request.resource.clone();
        if let Some(told) = self.take_told(&resource, bid) {
            return Ok(Round::Ours(Box::new(told)));
        }
        let now = self.now();
        if now < pursuit.not_before {
            return Ok(Round::Wait(pursuit.not_before));
        }
        let known = match &pursuit.queued {
            Some(_) if now < pursuit.look_at && now < pursuit.read_at => {
                return Ok(Round::Wait(pursuit.look_at.min(pursuit.read_at)));
            }
            Some(queued) if now < pursuit.read_at => Some(queued.clone()),
            Some(_) => None,
            None => self.state().take_known(&resource),
        };
        let is_a_read = known.is_none();
        let taken = self.try_take(known, bid).await?;
        pursuit.trouble_since = None;
        match taken {
            Some(Taken::Ours(stored)) => {
                if is_a_read && pursuit.queued.is_some() {
                    // The watch should have told.
                    self.0.metrics.watch_was_late();
                    self.0.watch_is_late.notify_one();
                }
                Ok(Round::Ours(Box::new(stored)))
            }
            Some(Taken::Queued(lock, outlook)) => {
                Ok(self.stay_queued(bid, pursuit, lock, outlook, is_a_read))
            }
            Some(Taken::Others(outlook)) => {
                self.note_last(&resource, Ok(outlook.held));
                pursuit.queued = None;
                Ok(self.pause_of(pursuit, 4, FULL_QUEUE_PAUSE))
            }
            None => {
                pursuit.queued = None;
                Ok(self.pause_of(pursuit, 0, CONFLICT_PAUSE))
            }
        }
    }

    /// Another try after a pause that grows, with full jitter: who all insist together only keep
    /// each other from writing.
    fn pause_of(&self, pursuit: &mut Pursuit, from: u32, longest: Duration) -> Round {
        let wait = Backoff::wait(pursuit.tries + from, longest);
        pursuit.tries = (pursuit.tries + 1).min(16);
        pursuit.not_before = self.now().after(wait);
        Round::Wait(pursuit.not_before)
    }

    /// We stand in the queue. The lock is read again after a third of the TTL, by whatever the
    /// watch tells. The first in the queue looks at the holder's session more often: it is the
    /// one who takes over.
    fn stay_queued(
        &self,
        bid: &Bid,
        pursuit: &mut Pursuit,
        queued: Stored<Lock>,
        outlook: Outlook,
        is_a_read: bool,
    ) -> Round {
        let now = self.now();
        let ttl = self.0.config.session_ttl.get();
        let is_first = bid
            .session()
            .is_some_and(|id| queued.value.waiters.ahead_of(id).is_empty());
        let jitter = 0.9 + 0.2 * fastrand::f64();
        let third = (ttl / 3).mul_f64(jitter);
        let look = if is_first { ttl / 10 } else { third };
        if pursuit.queued.is_none() {
            tracing::info!(
                resource = %bid.request.resource, ownerId = %bid.request.owner,
                ahead = queued.value.waiters.len().saturating_sub(1), "waiting in line"
            );
        }
        if is_a_read || pursuit.queued.is_none() {
            pursuit.read_at = now.after(third);
        }
        let look_at = now.after(look);
        pursuit.look_at = outlook
            .look_again
            .map_or(look_at, |at| at.min(look_at).max(now));
        pursuit.queued = Some(queued);
        pursuit.tries = 0;
        self.note_last(&bid.request.resource, Ok(outlook.held));
        Round::Wait(pursuit.look_at.min(pursuit.read_at))
    }

    /// The line's bid: the one that it has, in the name of who is first now, or a new one.
    fn bid_for(&self, front: &Front, bid: Option<Bid>) -> Bid {
        let request = front.request.clone();
        let bid = match bid {
            Some(bid) => bid.in_the_name_of(request),
            None => Bid::new(request, self.begin_line_attempt(), true),
        };
        if let Some(line) = self.state().lines.get_mut(&bid.request.resource) {
            line.grant = Some(bid.grant().clone());
        }
        bid
    }

    fn take_told(&self, resource: &Resource, bid: &Bid) -> Option<Stored<Lock>> {
        let told = self.state().lines.get_mut(resource)?.told.take()?;
        told.value.is_held_by(bid.grant()).then_some(told)
    }

    /// The lock is ours: makes the front caller's lease of it. When that caller has gone, the next
    /// round begins anew and the lease is released, or kept for its repetition.
    async fn hand_out(&self, front: &Front, stored: Stored<Lock>, pursuit: &mut Pursuit) {
        let Some(mut bid) = pursuit.bid.take() else {
            return;
        };
        let resource = front.request.resource.clone();
        *pursuit = Pursuit::default();
        bid.unsettled = Some(stored.version);
        let made = match self.claim(&mut bid).await {
            Ok(_) => {
                let stored = self.in_its_name(&mut bid, stored).await;
                self.make_lease(&bid, stored, front.arrived).await
            }
            Err(error) => Err(error),
        };
        let outcome = match made {
            Ok(lease) => Ok(Acquired::Granted {
                lease,
                replayed: false,
            }),
            Err(error) => {
                self.spawn_settle(resource.clone(), bid.grant().clone(), bid.unsettled);
                Err(error)
            }
        };
        if matches!(outcome, Err(AcquireError::SessionLost)) {
            // The next round begins another session, within what the caller waits.
            return;
        }
        let caller = self.state().take_caller(&resource, front.ticket);
        // Not delivered means dropped, and dropped means released.
        let mut delivery = Delivery::new(self, &bid.request, outcome);
        if let Some(caller) = caller {
            if caller.arrived != front.arrived {
                delivery.tell_from(caller.arrived);
            }
            if let Some(deliver) = caller.deliver {
                drop(deliver.send(delivery));
            }
        }
    }

    /// A place that another app of this pod stood in first is written in the name of who has it
    /// now, so that people see the right one. The lock is had either way.
    async fn in_its_name(&self, bid: &mut Bid, stored: Stored<Lock>) -> Stored<Lock> {
        let Ok(claim) = self.claim(bid).await else {
            return stored;
        };
        let Some(next) = stored.value.in_the_name_of(&claim) else {
            return stored;
        };
        // Closes the race with a force release, or another's joining: the name is written on the
        // version that was seen.
        match within(CALL_LIMIT, self.0.locks.update(&stored, &next)).await {
            Ok(written) => written,
            Err(error) => {
                tracing::warn!(
                    resource = %stored.value.resource, %error,
                    "the lock shows the app that waited first and has gone, not the one that has it"
                );
                stored
            }
        }
    }

    fn note_last(&self, resource: &Resource, last: Result<Acquired, AcquireError>) {
        if let Some(line) = self.state().lines.get_mut(resource) {
            line.last = Some(last);
        }
    }

    /// A round failed. Who has a place in the queue goes on: it may outlive the trouble. Others
    /// are told soon, as a try is.
    async fn meet_trouble(&self, front: &Front, error: AcquireError, pursuit: &mut Pursuit) {
        let resource = &front.request.resource;
        let now = self.now();
        let since = *pursuit.trouble_since.get_or_insert(now);
        let session = pursuit.bid.as_ref().and_then(Bid::session);
        if session.is_some_and(|id| self.session_deadline(id).is_none()) {
            self.abandon_bid(resource, pursuit);
        }
        let may_pass = match &error {
            AcquireError::SessionLost => true,
            AcquireError::Store(error) => error.is_transient(),
            _ => false,
        };
        let is_too_long = pursuit.queued.is_none() && now.since(since) >= TROUBLE_LIMIT;
        if !may_pass || is_too_long {
            self.refuse_all(resource, &error);
            return;
        }
        self.note_last(resource, Err(error));
        // Whatever was believed of the lock is read again.
        pursuit.read_at = now;
        let longest = self.0.config.session_ttl.get() / 10;
        let wait = Backoff::wait(pursuit.tries, longest);
        pursuit.tries = (pursuit.tries + 1).min(16);
        self.rest(resource, front, now.after(wait)).await;
    }

    /// Answers everybody in a line with the same error.
    fn refuse_all(&self, resource: &Resource, error: &AcquireError) {
        let callers = self.state().take_all_callers(resource);
        for deliver in callers {
            // Who went away meanwhile does not hear it.
            drop(deliver.send(Delivery::refused(self, error.clone())));
        }
    }

    /// Nobody waits any more: leaves the queue, or gives the grant back that came meanwhile. A try
    /// is made at once, so that a newcomer finds the place free; the rest goes on behind.
    async fn give_up_bid(&self, resource: &Resource, pursuit: &mut Pursuit) {
        let Some(bid) = &pursuit.bid else { return };
        if bid.is_sent {
            let settled = self.spawn_settle(resource.clone(), bid.grant().clone(), bid.unsettled);
            // Whether in time or not, the task sees to it.
            let _in_time = tokio::time::timeout(CALL_LIMIT, settled).await;
        }
        *pursuit = Pursuit::default();
    }

    /// The bid's session is over; its place is dead, and cleared away behind.
    fn abandon_bid(&self, resource: &Resource, pursuit: &mut Pursuit) {
        if let Some(bid) = pursuit.bid.take()
            && bid.is_sent
        {
            self.spawn_settle(resource.clone(), bid.grant().clone(), bid.unsettled);
        }
        pursuit.queued = None;
    }
}
