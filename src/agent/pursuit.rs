//! What one line does in the store: it takes its callers to the lock, one after the other, through
//! one place in the queue.
//!
//! A hand-over is told by the watch. The lock is read again every third of the TTL all the same:
//! a watch only makes things fast. A place that vanished is taken again, a grant that arrives for
//! nobody is released at once.
//!
//! The holder's session is polled. A watch on it would notice its end earlier by a twentieth of a TTL on
//! average, and would cost the API server one more watch for each contended lock.
//!
//! Invariant: whatever the store may hold for a line, its queue entry or its grant, is in the
//! line's bid; a bid that is given up leaves a task behind that clears it from the store.

mod trouble;

use std::time::Duration;

use crate::protocol::ids::Resource;
use crate::protocol::key::GrantKey;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::store::{StoreError, Stored, within};

use super::acquire::Delivery;
use super::bid::{Bid, Outlook, Uncertain};
use super::core::effect::Input;
use super::line::Front;
use super::local::LocalTurn;
use super::take::Taken;
use super::{AcquireError, Acquired, Agent, CALL_LIMIT, LeaseView};

/// The longest pause between two attempts: beyond it, places in the queue stay empty for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(6);
/// The bound of the first pause after the queue had no room. A longer one makes a crowd cheaper,
/// and makes a dozen pods with short work wait for nothing.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(3);
/// The bound of the first pause after a conflict or an error.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);

/// What a line does in the store.
#[derive(Default)]
struct Pursuit {
    bid: Option<Bid>,
    /// The lock as last seen, with our entry in its queue.
    queued: Option<Stored<Lock>>,
    /// Whether the store has a place or the grant for us, as far as was seen.
    has_place: bool,
    /// No try before this: the pause after one that came to nothing is for the others' sake, and a
    /// caller who comes or goes does not cut it short.
    not_before: Moment,
    /// When the lock is read again.
    read_at: Moment,
    /// When its holder's session is looked at again.
    look_at: Moment,
    /// Conflicts and errors in a row.
    tries: u32,
    /// Since when the store has not answered.
    trouble_since: Option<Moment>,
}

impl Pursuit {
    /// Whether the place in the queue is that of a preferred candidate, and who is first in line is
    /// none; or the other way round.
    fn has_place_of_another_kind(&self, front: &Front) -> bool {
        let session = self.bid.as_ref().and_then(Bid::session_key);
        let queued = self.queued.as_ref().zip(session);
        let place = queued.and_then(|(lock, session)| lock.value.waiters.entry_of(&session));
        place.is_some_and(|place| place.preferred != front.request.preferred)
    }
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
                self.with_leases(|leases| leases.callers_gone(&resource));
                self.give_up_bid(&mut pursuit).await;
                if self.state().close_line(&resource) {
                    self.0.something_ended.notify_waiters();
                    return;
                }
                continue;
            };
            let pursued = match self.local_turn(&resource) {
                LocalTurn::Serve => {
                    let served = self.serve_locally(&front).await;
                    if served.is_ok() {
                        // What went wrong before is over.
                        (pursuit.trouble_since, pursuit.tries) = (None, 0);
                    }
                    served
                }
                LocalTurn::Wait(until) => {
                    if let Some(held) = self.held_here(&resource, true) {
                        self.note_last(&resource, Ok(held));
                    }
                    self.rest(&resource, &front, until).await;
                    Ok(())
                }
                LocalTurn::No => self.serve_from_store(&front, &mut pursuit).await,
            };
            if let Err(error) = pursued {
                self.meet_trouble(&front, error, &mut pursuit).await;
            }
        }
    }

    /// One round towards the lock in the store.
    async fn serve_from_store(
        &self,
        front: &Front,
        pursuit: &mut Pursuit,
    ) -> Result<(), AcquireError> {
        let resource = &front.request.resource;
        match self.pursue(front, pursuit).await? {
            Round::Ours(stored) => self.hand_out(resource, *stored, pursuit).await,
            Round::Wait(until) => {
                self.rest(resource, front, until).await;
                Ok(())
            }
        }
    }

    /// Sleeps until something is told or the callers change, at the latest until this moment.
    async fn rest(&self, resource: &Resource, front: &Front, until: Moment) {
        let changed = self.state().lines.get(resource).map(|l| l.changed.clone());
        let Some(changed) = changed else { return };
        let until = front.kept_until.map_or(until, |kept| until.min(kept));
        tokio::select! {
            biased;
            () = self.0.stop.cancelled() => {}
            () = changed.notified() => {}
            () = self.sleep_until(until) => {}
        }
    }

    /// One round towards the lock: what the watch told, a read, or a look at the holder.
    async fn pursue(&self, front: &Front, pursuit: &mut Pursuit) -> Result<Round, AcquireError> {
        if pursuit.has_place_of_another_kind(front) {
            // Its place in the queue is taken by preference, and cannot be changed: a new one is.
            self.give_up_bid(pursuit).await;
        }
        let mut bid = self.bid_for(front, pursuit.bid.take());
        let round = self.pursue_by(&mut bid, pursuit).await;
        pursuit.bid = Some(bid);
        round
    }

    async fn pursue_by(&self, bid: &mut Bid, pursuit: &mut Pursuit) -> Result<Round, AcquireError> {
        let resource = bid.request.resource.clone();
        if let Some(session) = bid.session()
            && self.session_deadline(session).is_none()
        {
            return Err(AcquireError::SessionLost);
        }
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
            None => self.state().core.free_locks.take(&resource),
        };
        let is_a_read = known.is_none();
        let taken = self.try_take(known, bid).await?;
        pursuit.trouble_since = None;
        match taken {
            Some(Taken::Ours(stored)) => Ok(Round::Ours(Box::new(stored))),
            Some(Taken::HandedOver(stored)) => {
                if pursuit.queued.is_some() {
                    // The watch should have told.
                    self.0.metrics.watch_was_late();
                    self.feed(Input::WatchLate(stored.version));
                }
                Ok(Round::Ours(Box::new(stored)))
            }
            Some(Taken::Queued(lock, outlook)) => {
                Ok(self.stay_queued(bid, pursuit, lock, outlook, is_a_read))
            }
            Some(Taken::Others(outlook)) => {
                self.note_last(&resource, Ok(outlook.held));
                pursuit.queued = None;
                pursuit.has_place = false;
                Ok(Round::Wait(self.pause_for_room(bid, pursuit)))
            }
            None => {
                pursuit.queued = None;
                if std::mem::take(&mut bid.queue_was_full) {
                    return Ok(Round::Wait(self.pause_for_room(bid, pursuit)));
                }
                let longest = longest_pause(bid);
                Ok(Round::Wait(self.back_off(pursuit, longest)))
            }
        }
    }

    /// The pause after the queue had no room. Its bound grows with each.
    fn pause_for_room(&self, bid: &mut Bid, pursuit: &mut Pursuit) -> Moment {
        let bound = grown(NO_ROOM_PAUSE, 2, bid.pauses).min(longest_pause(bid));
        bid.pauses = bid.pauses.saturating_add(1);
        self.pause_within(pursuit, bound)
    }

    /// The pause after a conflict or an error. Its bound grows with each: callers that all retry at
    /// once only make each other's writes fail, and the holder's release.
    fn back_off(&self, pursuit: &mut Pursuit, longest: Duration) -> Moment {
        let bound = grown(SHORTEST_PAUSE, 4, pursuit.tries).min(longest);
        pursuit.tries = pursuit.tries.saturating_add(1);
        self.pause_within(pursuit, bound)
    }

    /// A pause with full jitter. No pause depends on how long a call took: a server that is far away
    /// or busy with other things says nothing about this lock.
    fn pause_within(&self, pursuit: &mut Pursuit, bound: Duration) -> Moment {
        pursuit.not_before = self.now().after(self.jittered(bound));
        pursuit.not_before
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
            .session_key()
            .is_some_and(|own| queued.value.waiters.ahead_of(&own).is_empty());
        let jitter = 0.9 + 0.2 * self.random().fraction();
        let third = (ttl / 3).mul_f64(jitter);
        let look = if is_first { ttl / 10 } else { third };
        if pursuit.queued.is_none() {
            tracing::info!(
                resource = %bid.request.resource, ownerId = %bid.request.owner,
                ahead = queued.value.waiters.len().saturating_sub(1), "queued for lock"
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
        pursuit.has_place = true;
        pursuit.tries = 0;
        self.note_last(&bid.request.resource, Ok(outlook.held));
        Round::Wait(pursuit.look_at.min(pursuit.read_at))
    }

    /// The line's bid: the one that it has, in the name of who is first now, or a new one.
    fn bid_for(&self, front: &Front, bid: Option<Bid>) -> Bid {
        let request = front.request.clone();
        let bid = if let Some(bid) = bid {
            bid.continued(request)
        } else {
            let attempt = self.begin_line_attempt(&request.resource);
            Bid::new(request, attempt, true)
        };
        if let Some(line) = self.state().lines.get_mut(&bid.request.resource) {
            line.grant = Some(bid.grant().clone());
        }
        bid
    }

    fn take_told(&self, resource: &Resource, bid: &Bid) -> Option<Stored<Lock>> {
        let told = self.state().lines.get_mut(resource)?.told.take()?;
        told.value.is_held_by(&bid.key()?).then_some(told)
    }

    /// The lock is ours: makes a lease of it for whoever is first in line now. When nobody is, the
    /// grant is released; when that cannot be known yet, the lock is read again.
    async fn hand_out(
        &self,
        resource: &Resource,
        stored: Stored<Lock>,
        pursuit: &mut Pursuit,
    ) -> Result<(), AcquireError> {
        let Some(mut bid) = pursuit.bid.take() else {
            return Ok(());
        };
        pursuit.queued = None;
        pursuit.has_place = true;
        pursuit.trouble_since = None;
        bid.uncertain = Some(Uncertain::Swap(stored.version));
        let made = match self.lease_for_first(resource, &mut bid, stored).await {
            Ok(Some((first, lease))) => {
                self.deliver(&first, lease);
                *pursuit = Pursuit::default();
                return Ok(());
            }
            Err(AcquireError::Store(error)) if error.is_transient() => {
                pursuit.bid = Some(bid);
                return Err(error.into());
            }
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        pursuit.has_place = false;
        // The task finishes by itself.
        let _settled = self.settle_bid(&bid);
        made
    }

    /// Who is first may change under every wait, so it is asked again after each.
    async fn lease_for_first(
        &self,
        resource: &Resource,
        bid: &mut Bid,
        mut stored: Stored<Lock>,
    ) -> Result<Option<(Front, LeaseView)>, AcquireError> {
        let first_of = || {
            let now = self.now();
            self.state().front_of(resource, now)
        };
        let mut may_write_name = true;
        loop {
            let Some(first) = first_of() else {
                return Ok(None);
            };
            bid.request = first.request.clone();
            let claim = self.claim(bid).await?;
            // A place that another app of this pod stood in first gets the name of who has it
            // now, so that people see the right one. The lock is had either way.
            if let Some(next) = stored.value.in_the_name_of(&claim)
                && may_write_name
            {
                may_write_name = false;
                stored = self.write_name(stored, &next, &claim.key()).await?;
                continue;
            }
            if first_of().is_some_and(|now| now.ticket == first.ticket) {
                let lease = self.make_lease(bid, stored, first.arrived).await?;
                return Ok(Some((first, lease)));
            }
        }
    }

    /// The lock with its new name, or as it is if that is refused. When another write came first,
    /// or it is not known whether ours landed, the lock is read: the grant may be gone.
    async fn write_name(
        &self,
        current: Stored<Lock>,
        next: &Lock,
        grant: &GrantKey,
    ) -> Result<Stored<Lock>, AcquireError> {
        // Closes the race with a force release, or another's joining: the name is written on the
        // version that was seen.
        let error = match within(CALL_LIMIT, self.0.locks.update(&current, next)).await {
            Ok(written) => return Ok(written),
            Err(error) => error,
        };
        let resource = &current.value.resource;
        tracing::warn!(
            %resource, %error, "updating the holder's owner failed"
        );
        let is_settled = !error.is_transient()
            && !matches!(error, StoreError::Conflict | StoreError::NotFound(_));
        if is_settled {
            return Ok(current);
        }
        let found = self.read_lock(resource).await?;
        found
            .filter(|found| found.value.is_held_by(grant))
            .ok_or(AcquireError::GrantEnded)
    }

    /// Answers the caller that the lease was made for. If it gave up meanwhile, or nobody hears it,
    /// the lease is released; or kept, where the request may be repeated.
    pub(super) fn deliver(&self, first: &Front, lease: LeaseView) {
        let caller = self
            .state()
            .take_caller(&first.request.resource, first.ticket);
        let mut delivery = Delivery::new(self, lease);
        let Some(caller) = caller else {
            return drop(delivery);
        };
        if caller.arrived != first.arrived {
            delivery.tell_from(caller.arrived);
        }
        if first.request.request_id.is_some() {
            delivery.keep(caller.deliver.is_none().then_some(caller.kept_until));
        }
        if let Some(deliver) = caller.deliver {
            // Not delivered means dropped.
            drop(deliver.send(delivery));
        }
    }

    pub(super) fn note_last(&self, resource: &Resource, last: Result<Acquired, AcquireError>) {
        if let Some(line) = self.state().lines.get_mut(resource) {
            line.last = Some(last);
        }
        self.0.lines_heard.notify_waiters();
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
    async fn give_up_bid(&self, pursuit: &mut Pursuit) {
        let Some(bid) = &pursuit.bid else { return };
        if let Some(settled) = self.settle_bid(bid) {
            // Whether in time or not, the task sees to it.
            let _in_time = tokio::time::timeout(CALL_LIMIT, settled).await;
        }
        *pursuit = Pursuit::default();
    }

    /// No grant can come by this bid any more: its session is over, or its id is taken. What it may
    /// have left in the store is cleared away behind.
    fn abandon_bid(&self, pursuit: &mut Pursuit) {
        if let Some(bid) = pursuit.bid.take() {
            // The task finishes by itself.
            let _settled = self.settle_bid(&bid);
        }
        pursuit.queued = None;
        pursuit.has_place = false;
    }
}

/// The first bound, multiplied by the factor so many times.
fn grown(first: Duration, factor: u32, times: u32) -> Duration {
    first.saturating_mul(factor.saturating_pow(times))
}

/// The longest pause of a caller that waits so long in all.
fn longest_pause(bid: &Bid) -> Duration {
    LONGEST_PAUSE.min(bid.request.wait / 4)
}
