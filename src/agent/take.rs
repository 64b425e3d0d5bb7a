//! Taking a lock in the store: read, decide, write, until the lock names a grant.
//!
//! The grant's id is made before the first write. Whenever an answer does not say what happened,
//! the lock is read: one's own id in it means that the write landed. No write is repeated
//! blindly; each goes out on the version it was decided on, but for the one that joins the queue.
//!
//! A session is begun only for a write: who is merely turned away costs the store one read (but for
//! a lock that is marked as kept, whose queue is worth a try: `acquire`).

mod entries;
mod read;

use crate::protocol::ids::Resource;
use crate::protocol::lock::{Decision, Grant, Lock, Refusal};
use crate::protocol::queue::{QUEUE_MAX, Waiter};
use crate::store::{StoreError, Stored, within};

use super::bid::{Bid, Outlook, Uncertain};
use super::core::release::ReleaseOf;
use super::core::session::Live;
use super::foreign::queued_by_another_pod;
use super::take_over::Fate;
use super::{AcquireError, Acquired, Agent, Backoff, CALL_LIMIT, HolderView};

/// How many may wait in a queue that moves for a newcomer to join: every entry makes each write of
/// the lock dearer, the one that hands it over first of all. Who comes later looks again after a
/// pause; a queue that has not moved meanwhile is joined as long as there is room.
const SHORT_QUEUE: usize = 10;
/// The same for who has paused: places that no newcomer can take, or those who come back at once
/// after each turn would keep all others out.
const SHORT_QUEUE_AFTER_A_PAUSE: usize = 12;

/// Why a free lock is not taken.
const BEING_DELETED: &str = "the lock's object was deleted, and a finalizer keeps it; it is \
     recreated when it is gone";

/// What the store's side of a try came to.
#[derive(Clone)]
pub(super) enum Taken {
    /// The lock names our grant, by the write that was just made.
    Ours(Stored<Lock>),
    /// The lock was found to name our grant: it was handed over, or an earlier write landed.
    HandedOver(Stored<Lock>),
    /// It names another, and we stand in its queue.
    Queued(Stored<Lock>, Outlook),
    /// It names another.
    Others(Outlook),
}

/// What to do about a lock that was read.
enum Step {
    /// Write this.
    Send(Write),
    /// Nothing more.
    Done(Box<Taken>),
    /// The lock changed under the decision; read it again.
    Again,
}

/// A write that requests the lock.
enum Write {
    /// Acquires the free lock.
    Grant(Box<Lock>),
    /// Takes over the lock of an expired holder.
    TakeOver(Box<Lock>),
    /// Joins the queue with this entry.
    Join(Box<Waiter>),
}

impl Agent {
    /// Tries until the lock names a grant, ours or another's, or we stand in its queue.
    pub(super) async fn take(&self, bid: &mut Bid) -> Result<Taken, AcquireError> {
        let mut known = self.state().core.free_locks.take(&bid.request.resource);
        let mut backoff = Backoff::of_a_call(self.now());
        loop {
            match self.try_take(known.take(), bid).await {
                Ok(Some(taken)) => return Ok(taken),
                // Somebody else's write came first: read again at once, but not for ever.
                Ok(None) => {}
                Err(AcquireError::Store(error)) if error.is_transient() => {
                    if !self.pause(&mut backoff).await {
                        return Err(AcquireError::Store(error));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            if !self.pause(&mut backoff).await {
                return Err(AcquireError::Store(StoreError::Unavailable(
                    "the lock kept changing, or its last lease in this pod is still being \
                     released"
                        .into(),
                )));
            }
        }
    }

    /// One round: read (unless the lock is known), decide, write. None when another write came
    /// first.
    pub(super) async fn try_take(
        &self,
        known: Option<Stored<Lock>>,
        bid: &mut Bid,
    ) -> Result<Option<Taken>, AcquireError> {
        let current = match known {
            Some(known) => known,
            None => self.read_or_create(bid).await?,
        };
        if self.is_taken_by_another_pod(&current, bid) {
            return Err(AcquireError::GrantEnded);
        }
        if let (true, Some(grant)) = (bid.waits, &current.value.grant) {
            // A caller whose time is up before more is known is told at least this.
            let held = held_by_other(&current.value, grant, bid, None);
            self.note_last(&bid.request.resource, Ok(held));
        }
        let mut write = match self.decide(&current, bid).await? {
            Step::Done(taken) => return Ok(Some(*taken)),
            Step::Again => return Ok(None),
            Step::Send(write) => write,
        };
        self.check_session(bid)?;
        bid.is_sent = true;
        let mut answer = self.send(&current, &write).await;
        let lost_race =
            matches!(write, Write::Grant(_)) && matches!(answer, Err(StoreError::Conflict));
        if lost_race && bid.waits && !bid.request.preferred {
            // Another write came first. Most likely it was a grant that still holds the lock: join
            // its queue without another read. If not, the join conflicts, too, and changes nothing.
            let claim = self.claim(bid).await?;
            write = Write::Join(Box::new(claim.to_waiter()));
            answer = self.send(&current, &write).await;
        }
        match answer {
            Ok(stored) => {
                if matches!(write, Write::Join(_)) {
                    bid.note_join(true);
                }
                self.note_written(&stored);
                Ok(taken_by(stored, bid))
            }
            Err(StoreError::Conflict | StoreError::NotFound(_)) => Ok(None),
            Err(StoreError::QueueFull) => {
                bid.queue_was_full = true;
                Ok(None)
            }
            Err(StoreError::DeniedByPolicy(reason)) if matches!(write, Write::TakeOver(_)) => {
                let hint = Some(self.note_strict(&reason));
                Ok(current.value.grant.as_ref().map(|grant| {
                    let held = held_by_other(&current.value, grant, bid, hint);
                    waiting_or_not(&current, bid, held.into())
                }))
            }
            Err(error) => {
                if matches!(error, StoreError::Ambiguous(_)) {
                    match write {
                        Write::Join(_) => bid.note_join(false),
                        _ => bid.uncertain = Some(Uncertain::Swap(current.version)),
                    }
                }
                Err(error.into())
            }
        }
    }

    async fn send(
        &self,
        current: &Stored<Lock>,
        write: &Write,
    ) -> Result<Stored<Lock>, StoreError> {
        let answer = match write {
            // Closes the race of two who read the same free (or dead) lock: one write per version.
            Write::Grant(next) | Write::TakeOver(next) => self.0.locks.update(current, next),
            Write::Join(waiter) => self.0.locks.join(current, waiter),
        };
        within(CALL_LIMIT, answer).await
    }

    async fn decide(&self, current: &Stored<Lock>, bid: &mut Bid) -> Result<Step, AcquireError> {
        let lock = &current.value;
        let is_moving = bid.seen.replace(current.version) != Some(current.version);
        let has_room = self.has_room(lock, bid);
        if let Some(grant) = &lock.grant
            && !has_room
            && !names(lock, bid)
        {
            if !bid.waits || !is_moving {
                return self.judge_holder(current, bid).await;
            }
            // While others write the lock, those in its queue judge its holder.
            let held = held_by_other(lock, grant, bid, None);
            let taken = waiting_or_not(current, bid, held.into());
            return Ok(Step::Done(Box::new(taken)));
        }
        let claim = self.claim(bid).await?;
        let mint = self.mint()?;
        let decision = if bid.waits {
            lock.acquire_or_queue(current.version, &mint, &claim)
        } else {
            lock.acquire(current.version, &mint, &claim)
        };
        self.step_by(decision, current, bid).await
    }

    /// Whether there is room for this bid in the queue of the lock.
    fn has_room(&self, lock: &Lock, bid: &mut Bid) -> bool {
        let room = match (self.moves(lock, bid), bid.pauses) {
            (true, 0) => SHORT_QUEUE,
            (true, _) => SHORT_QUEUE_AFTER_A_PAUSE,
            (false, _) => QUEUE_MAX,
        };
        bid.waits && lock.waiters.len() < room
    }

    /// What is to be done about what the protocol decided.
    async fn step_by(
        &self,
        decision: Decision,
        current: &Stored<Lock>,
        bid: &mut Bid,
    ) -> Result<Step, AcquireError> {
        match decision {
            Decision::Granted(next) => Ok(Step::Send(Write::Grant(next))),
            Decision::Queued(waiter) => {
                let leaves = self.leave_former_entries(current, &waiter).await?;
                Ok(if leaves {
                    Step::Again
                } else {
                    Step::Send(Write::Join(waiter))
                })
            }
            Decision::AlreadyGranted => {
                let found = Taken::HandedOver(current.clone());
                Ok(Step::Done(Box::new(found)))
            }
            Decision::Refused(Refusal::TokenExhausted(error)) => Err(error.into()),
            Decision::Refused(Refusal::BeingDeleted) => {
                // A waiter re-reads until the object is gone, and recreates it.
                let error = StoreError::Unavailable(BEING_DELETED.into());
                if !bid.waits {
                    return Err(error.into());
                }
                self.note_last(&bid.request.resource, Err(error.into()));
                Ok(Step::Again)
            }
            Decision::AlreadyQueued(entry) if self.is_foreign(&entry) => {
                // It is that pod's to remove, and while it is there no store takes another entry of
                // this session. Retries would fail until the lock is free.
                Err(queued_by_another_pod(&current.value, &entry))
            }
            Decision::AlreadyQueued(entry) if entry.id != *bid.grant() => {
                self.leave_old_place(&current.value.resource, entry);
                Ok(Step::Again)
            }
            Decision::Refused(Refusal::Held | Refusal::QueueFull) | Decision::AlreadyQueued(_) => {
                self.judge_holder(current, bid).await
            }
        }
    }

    /// Whether the lock was granted since this bid looked first, or not long before.
    fn moves(&self, lock: &Lock, bid: &mut Bid) -> bool {
        let now = self.now();
        let (turns, since) = *bid.turns.get_or_insert((lock.transitions, now));
        if turns != lock.transitions {
            bid.turns = Some((lock.transitions, now));
            return true;
        }
        now.since(since) < self.0.config.session_ttl.get() / 3
    }

    async fn judge_holder(
        &self,
        current: &Stored<Lock>,
        bid: &mut Bid,
    ) -> Result<Step, AcquireError> {
        let lock = &current.value;
        let Some(grant) = &lock.grant else {
            return Ok(Step::Again);
        };
        if self.is_on_its_way_back(&lock.resource, grant) {
            return Ok(Step::Again);
        }
        let fate = match self.fate_of_holder(lock, grant).await {
            // Who holds the lock is known; whether it lives is not.
            Err(error) if !error.is_transient() => {
                Fate::unjudged(format!("the holder's session cannot be looked at: {error}"))
            }
            fate => fate?,
        };
        match fate {
            Fate::Changed => Ok(Step::Again),
            Fate::MayLive {
                hint,
                until,
                dead_at,
            } => {
                let held = held_by_other(lock, grant, bid, hint);
                let outlook = Outlook {
                    held,
                    look_again: until,
                    dead_at,
                };
                let taken = waiting_or_not(current, bid, outlook);
                Ok(Step::Done(Box::new(taken)))
            }
            Fate::Dead => {
                let claim = self.claim(bid).await?;
                let next = self.lock_after_take_over(current, &claim);
                Ok(next.map_or(Step::Again, |next| {
                    Step::Send(Write::TakeOver(Box::new(next)))
                }))
            }
        }
    }

    /// A grant under our own session is some lease's, some other attempt's, or on its way back.
    /// One that is none of these landed after everybody had given up on it: it is released.
    fn is_on_its_way_back(&self, resource: &Resource, grant: &Grant) -> bool {
        let is_returning = {
            let state = self.state();
            let ours = state.session().map(Live::key);
            if ours != Some(grant.holder.key()) {
                return false;
            }
            if state.core.own.has(resource, &grant.id) || state.claimed.contains(&grant.id) {
                return false;
            }
            state.core.releases.has(&grant.id)
        };
        // The lock may have been read before a release that is done by now: only a grant that a
        // second read still shows is an orphan.
        if !is_returning && self.state().suspected_before(&grant.id) {
            tracing::warn!(%resource, grantId = %grant.id, "orphaned grant; releasing");
            let what = ReleaseOf::new(resource.clone(), grant.key(), None);
            self.with_leases(|leases| leases.release(what, Vec::new()));
        }
        true
    }

    /// A token that was made by who had not seen that a backup was restored is raised by a second
    /// write before anybody hears of it. Where we had not seen it ourselves, the session is lost.
    pub(super) async fn raise_if_restored(
        &self,
        mut stored: Stored<Lock>,
        bid: &Bid,
    ) -> Result<Stored<Lock>, AcquireError> {
        let grant = bid.key().ok_or(AcquireError::SessionLost)?;
        let mut backoff = Backoff::of_a_call(self.now());
        loop {
            self.observe_revision(stored.version);
            self.check_session(bid)?;
            if !stored.value.is_held_by(&grant) {
                return Err(AcquireError::GrantEnded);
            }
            let mint = self.mint()?;
            if !mint.must_raise(stored.value.token, stored.version) {
                return Ok(stored);
            }
            tracing::warn!(
                resource = %stored.value.resource, fencingToken = stored.value.token.get(),
                revision = stored.version.0,
                "store revision jumped; raising the fencing token"
            );
            let raised = stored.value.rebase(stored.version, &mint, &grant)?;
            let raised = raised.ok_or(AcquireError::SessionLost)?;
            // Closes the race with a force release: the token is raised on the version we hold.
            let error = match within(CALL_LIMIT, self.0.locks.update(&stored, &raised)).await {
                Ok(written) => {
                    stored = written;
                    continue;
                }
                Err(error) => error,
            };
            let may_be_read = matches!(error, StoreError::Conflict | StoreError::NotFound(_));
            if !may_be_read && !error.is_transient() {
                return Err(error.into());
            }
            if !self.pause(&mut backoff).await {
                return Err(error.into());
            }
            match self.read_lock(&stored.value.resource).await {
                Ok(Some(found)) => stored = found,
                Ok(None) => return Err(AcquireError::GrantEnded),
                // The next round tries again.
                Err(_) => {}
            }
        }
    }
}

/// Whether the lock has a place for the bid's session, or is held by it. Without a session the bid
/// has sent no write.
fn names(lock: &Lock, bid: &Bid) -> bool {
    bid.session_key().is_some_and(|session| {
        let holder = lock.grant.as_ref().map(|grant| grant.holder.key());
        holder.as_ref() == Some(&session) || lock.waiters.entry_of(&session).is_some()
    })
}

/// What our write came to; none when it served somebody else.
fn taken_by(stored: Stored<Lock>, bid: &Bid) -> Option<Taken> {
    if bid.key().is_some_and(|key| stored.value.is_held_by(&key)) {
        return Some(Taken::Ours(stored));
    }
    let grant = stored.value.grant.as_ref()?;
    let held = held_by_other(&stored.value, grant, bid, None);
    match waiting_or_not(&stored, bid, held.into()) {
        queued @ Taken::Queued(..) => Some(queued),
        _ => None,
    }
}

/// We stand in the queue, or do not.
fn waiting_or_not(current: &Stored<Lock>, bid: &Bid, outlook: Outlook) -> Taken {
    let mut entries = current.value.waiters.entries().iter();
    let own = bid.key();
    if own.is_some_and(|own| entries.any(|waiter| waiter.key() == own)) {
        Taken::Queued(current.clone(), outlook)
    } else {
        Taken::Others(outlook)
    }
}

/// What somebody is told who cannot have the lock; the queue is counted without its own entry.
fn held_by_other(lock: &Lock, grant: &Grant, bid: &Bid, hint: Option<String>) -> Acquired {
    let others = lock.waiters.entries().iter();
    let others = others.filter(|waiter| waiter.grant != *bid.grant());
    Acquired::Held {
        holder: holder_view(lock, grant),
        queue_length: others.count(),
        hint,
    }
}

/// Who holds a lock, for people.
pub(super) fn holder_view(lock: &Lock, grant: &Grant) -> HolderView {
    HolderView {
        owner: grant.holder.owner.clone(),
        pod: grant.holder.pod.name.to_string(),
        token: lock.token,
        acquired_at: grant.acquired_at,
        metadata: grant.metadata.clone(),
        kept: grant.kept,
    }
}
