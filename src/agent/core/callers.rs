//! The callers that want one lock, oldest first. A try, a wait, a hold and a campaign differ only in how
//! long they wait. Callers that wait are served before tries: a try does not pass those in the queue.
//!
//! Invariant: each call is answered once. A caller without a call is there only until its place is no
//! longer kept.

use std::collections::VecDeque;
use std::time::Duration;

use crate::agent::api::{AcquireError, AcquireRequest, Acquired};
use crate::protocol::ids::OwnerId;
use crate::protocol::object::StoreError;
use crate::protocol::time::Moment;

use super::effect::CallId;
use super::history::RequestKey;
use super::limits::REQUEST_LIMIT;

/// How long the place, or the grant, of a caller that hung up is kept for the repetition of its
/// `requestId`.
pub(in crate::agent) const PLACE_KEPT_FOR: Duration = Duration::from_secs(10);

/// How long a try queues for a lock that is kept between leases.
pub(super) const KEPT_IS_GIVEN_WITHIN: Duration = Duration::from_millis(250);

/// Names a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallerId(u64);

/// The callers that want one lock.
#[derive(Clone, Debug, Default)]
pub(super) struct Callers {
    list: VecDeque<Caller>,
    last_id: u64,
    /// What is known of the lock, for callers whose time is up.
    known: Option<Result<Acquired, AcquireError>>,
    /// When the read was sent that showed it.
    known_as_of: Moment,
    /// When the proof that the holder is dead can be had, for which tries wait.
    proof_at: Option<Moment>,
}

/// One caller.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) id: CallerId,
    pub(super) request: AcquireRequest,
    /// When its first call arrived.
    arrived: Moment,
    /// The calls to answer: more than one if a `requestId` is repeated.
    pub(super) calls: Vec<Pending>,
    /// Until when its place is kept, once there is no call.
    pub(super) kept_until: Moment,
    /// What it would have been told, if it is a try that queues: the lock's pod keeps the lock between
    /// leases.
    pub(super) tried: Option<Acquired>,
}

/// A call that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) call: CallId,
    pub(super) arrived: Moment,
    /// Until when it waits for the lock.
    pub(super) until: Moment,
    /// When the core took it.
    since: Moment,
}

/// A call whose time is up.
pub(super) struct Overdue {
    pub(super) call: CallId,
    /// What it would have been told, if it is a try that queued.
    pub(super) tried: Option<Acquired>,
}

impl Caller {
    /// Returns whether it waits for the lock, and does not only ask for it: also a try that has joined the
    /// queue of a kept lock.
    pub(super) fn waits(&self) -> bool {
        self.tried.is_some() || !self.request.wait.is_zero()
    }

    /// Returns when the call arrived that is answered with its lease. What an app is told of a lease counts
    /// from there.
    pub(super) fn arrived(&self) -> Moment {
        self.calls.last().map_or(self.arrived, |last| last.arrived)
    }

    /// Returns since when it wants the lock.
    pub(super) const fn since(&self) -> Moment {
        self.arrived
    }

    /// Returns how long it waits in all, which bounds pauses. `Pending::until` ends the wait.
    pub(super) fn patience(&self) -> Duration {
        match self.tried {
            Some(_) => KEPT_IS_GIVEN_WITHIN,
            None => self.request.wait,
        }
    }

    /// Adds a call that repeats its request, and waits for as long as it asks for itself.
    fn repeat(&mut self, mut pending: Pending, wait: Duration) {
        match self.calls.last() {
            None => (self.tried, self.request.wait) = (None, wait),
            // A try that queues is answered at the same time as before.
            Some(last) if self.tried.is_some() && wait.is_zero() => pending.until = last.until,
            Some(_) if wait > self.request.wait => {
                if !self.waits() {
                    for before in &mut self.calls {
                        before.until = before.limit(Moment::default());
                    }
                }
                self.request.wait = wait;
            }
            Some(_) => {}
        }
        self.calls.push(pending);
    }

    fn is_there(&self, now: Moment) -> bool {
        !self.calls.is_empty() || now < self.kept_until
    }
}

impl Pending {
    fn new(call: CallId, arrived: Moment, wait: Duration, now: Moment) -> Self {
        Self {
            call,
            arrived,
            until: arrived.after(wait),
            since: now,
        }
    }

    /// Returns until when it waits for the read that answers it, if it is a try.
    fn limit(&self, proof_at: Moment) -> Moment {
        self.since.max(proof_at).after(REQUEST_LIMIT)
    }
}

impl Callers {
    /// Adds a call: to the caller with the same request, if there is one.
    pub(super) fn add(
        &mut self,
        call: CallId,
        request: AcquireRequest,
        arrived: Moment,
        now: Moment,
    ) {
        let pending = Pending::new(call, arrived, request.wait, now);
        if let Some(same) = RequestKey::of(&request).and_then(|key| self.caller_of(&key)) {
            return same.repeat(pending, request.wait);
        }
        self.last_id += 1;
        self.list.push_back(Caller {
            id: CallerId(self.last_id),
            request,
            arrived,
            calls: vec![pending],
            kept_until: arrived,
            tried: None,
        });
    }

    /// Returns the caller with this request.
    pub(super) fn caller_of(&mut self, key: &RequestKey) -> Option<&mut Caller> {
        let mut callers = self.list.iter_mut();
        callers.find(|caller| RequestKey::of(&caller.request).as_ref() == Some(key))
    }

    /// Removes a call whose client hung up. With a `requestId` the caller's place is kept for a while.
    /// Returns whose it was and when it arrived, if its caller waits.
    pub(super) fn hang_up(&mut self, call: CallId, now: Moment) -> Option<(OwnerId, Moment)> {
        let place = self.list.iter().position(|caller| {
            let mut calls = caller.calls.iter();
            calls.any(|pending| pending.call == call)
        })?;
        let caller = self.list.get_mut(place)?;
        let at = caller
            .calls
            .iter()
            .position(|pending| pending.call == call)?;
        let pending = caller.calls.remove(at);
        let waited = (caller.request.owner.clone(), pending.arrived);
        let waited = caller.waits().then_some(waited);
        if caller.calls.is_empty() {
            if caller.request.request_id.is_some() {
                caller.kept_until = now.after(PLACE_KEPT_FOR);
            } else {
                self.list.remove(place);
            }
        }
        waited
    }

    /// Returns a caller, if it is still there.
    pub(super) fn get(&self, id: CallerId) -> Option<&Caller> {
        self.list.iter().find(|caller| caller.id == id)
    }

    /// Returns the caller whose turn is next. Callers whose place was kept for long enough are removed.
    pub(super) fn first(&mut self, now: Moment) -> Option<&Caller> {
        self.list.retain(|caller| caller.is_there(now));
        let waits = self.list.iter().position(Caller::waits);
        self.list.get(waits.unwrap_or(0))
    }

    /// Returns whether any caller waits, or may be about to come back.
    pub(super) fn is_awaited(&self, now: Moment) -> bool {
        let mut callers = self.list.iter();
        callers.any(|caller| caller.waits() && caller.is_there(now))
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns how many of them asked to wait.
    pub(super) fn waiting(&self) -> usize {
        let mut callers = self.list.iter();
        let asked_to_wait = |caller: &&Caller| !caller.request.wait.is_zero();
        callers.by_ref().filter(asked_to_wait).count()
    }

    /// Removes a caller, to answer it.
    pub(super) fn take(&mut self, id: CallerId) -> Option<Caller> {
        let place = self.list.iter().position(|caller| caller.id == id)?;
        self.list.remove(place)
    }

    /// Removes those who have waited for as long as a request may without an answer of the store, which has
    /// given none since a moment.
    pub(super) fn take_late(&mut self, since: Moment, now: Moment) -> Vec<Caller> {
        let is_late = |caller: &Caller| now.since(since.max(caller.since())) >= REQUEST_LIMIT;
        let (late, others): (Vec<_>, Vec<_>) = self.list.drain(..).partition(is_late);
        self.list = others.into();
        late
    }

    /// Removes all callers, to answer them.
    pub(super) fn take_all(&mut self) -> Vec<Caller> {
        self.list.drain(..).collect()
    }

    /// Records what is known of the lock.
    pub(super) fn record(&mut self, known: Result<Acquired, AcquireError>) {
        self.known = Some(known);
    }

    /// Records what tries are answered that arrived before a read was sent. They wait for the proof that
    /// the holder is dead, if one can be had.
    pub(super) fn settle(&mut self, known: Acquired, sent: Moment, proof_at: Option<Moment>) {
        self.known = Some(Ok(known));
        (self.known_as_of, self.proof_at) = (sent, proof_at);
        // A try whose client hung up is over with it.
        self.list
            .retain(|caller| caller.waits() || !caller.calls.is_empty());
    }

    /// Returns whether anything is known of the lock.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Returns what is known of the lock, if it is held.
    pub(super) fn held(&self) -> Option<&Acquired> {
        self.known.as_ref()?.as_ref().ok()
    }

    /// Returns what a call is answered that has not got the lock in time.
    pub(super) fn answer(&self) -> Result<Acquired, AcquireError> {
        self.known.clone().unwrap_or_else(|| {
            let words = "nothing is known of the lock yet".into();
            Err(StoreError::Unavailable(words).into())
        })
    }

    /// Removes the calls whose time is up. A try is answered once a read that was sent after it arrived
    /// shows who holds the lock. What is in flight for it may still answer it later than its limit.
    pub(super) fn take_overdue(&mut self, now: Moment, is_busy: bool) -> Vec<Overdue> {
        let (as_of, is_held) = (self.known_as_of, self.held().is_some());
        let proof_at = self.proof_at.unwrap_or_default();
        let mut overdue = Vec::new();
        for caller in &mut self.list {
            let waits = caller.waits();
            let is_over = |pending: &mut Pending| {
                if waits {
                    return now >= pending.until;
                }
                let is_known = is_held && pending.arrived.max(proof_at) <= as_of;
                is_known || (!is_busy && now >= pending.limit(proof_at))
            };
            let had_calls = !caller.calls.is_empty();
            let tried = caller.tried.clone();
            let calls = caller.calls.extract_if(.., is_over);
            overdue.extend(calls.map(|pending| Overdue {
                call: pending.call,
                tried: tried.clone(),
            }));
            if had_calls && caller.calls.is_empty() {
                caller.kept_until = now;
            }
        }
        self.list.retain(|caller| caller.is_there(now));
        overdue
    }

    /// Returns whether a try waits for a read that is not sent yet.
    pub(super) fn needs_read(&self, now: Moment) -> bool {
        let is_due = self.proof_at.is_some_and(|proof_at| now >= proof_at);
        self.tries()
            .any(|pending| is_due || pending.arrived > self.known_as_of)
    }

    /// Returns whether there is a try.
    pub(super) fn has_tries(&self) -> bool {
        self.tries().next().is_some()
    }

    fn tries(&self) -> impl Iterator<Item = &Pending> {
        let tries = self.list.iter().filter(|caller| !caller.waits());
        tries.flat_map(|caller| &caller.calls)
    }

    /// Lets the tries queue until a moment: the lock's pod keeps the lock, and may not use it.
    pub(super) fn queue_tries(&mut self, held: &Acquired, until: Moment) {
        // One whose client hung up asks for nothing.
        let is_try = |caller: &&mut Caller| !caller.waits() && !caller.calls.is_empty();
        for caller in self.list.iter_mut().filter(is_try) {
            caller.tried = Some(held.clone());
            for pending in &mut caller.calls {
                pending.until = until;
            }
        }
    }

    /// Returns when a call's time is up, or a place is no longer kept.
    pub(super) fn timeout(&self, now: Moment, is_busy: bool) -> Option<Moment> {
        let proof_at = self.proof_at.unwrap_or_default();
        let times = self.list.iter().flat_map(|caller| {
            let kept = caller.calls.is_empty().then_some(caller.kept_until);
            let calls = caller.calls.iter().filter_map(move |pending| {
                if caller.waits() {
                    Some(pending.until)
                } else if is_busy {
                    None
                } else if now < proof_at {
                    Some(proof_at)
                } else {
                    Some(pending.limit(proof_at))
                }
            });
            calls.chain(kept)
        });
        times.min()
    }
}
