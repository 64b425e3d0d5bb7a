//! The callers of this agent who wait for one lock, oldest first. The store's queue has one entry
//! for all of them; they stand in line behind it here.
//!
//! No I/O: `wait` puts callers in, `pursuit` serves them. Invariant: a caller is in its line until
//! it was given a lease, its time was up, or it went away; who takes it out is who answers it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

use crate::protocol::ids::{GrantId, Resource};
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::store::Stored;

use super::acquire::Delivery;
use super::core::history::RequestKey;
use super::core::session::Live;
use super::state::State;
use super::{AcquireError, AcquireRequest, Acquired, Config};

/// How long the place, or the grant, of a caller that went away is kept for the repetition of its
/// `requestId`.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(10);

/// Names a caller in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// Those who wait for one lock.
#[derive(Default)]
pub(super) struct Line {
    callers: VecDeque<Caller>,
    /// Wakes who drives the line: a grant was told, or the callers changed.
    pub(super) changed: Arc<Notify>,
    /// The grant that the line waits for in the store.
    pub(super) grant: Option<GrantId>,
    /// The lock with that grant, as the watch told.
    pub(super) told: Option<Stored<Lock>>,
    /// What to answer a caller whose time is up.
    pub(super) last: Option<Result<Acquired, AcquireError>>,
}

/// One who waits.
pub(super) struct Caller {
    ticket: Ticket,
    request: AcquireRequest,
    pub(super) arrived: Moment,
    /// None once it went away.
    pub(super) deliver: Option<oneshot::Sender<Delivery>>,
    /// Until when its place is kept, once it went away.
    pub(super) kept_until: Moment,
}

/// The caller whose turn is next.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) ticket: Ticket,
    pub(super) request: AcquireRequest,
    pub(super) arrived: Moment,
    /// Until when its place is kept, if it went away.
    pub(super) kept_until: Option<Moment>,
}

/// How a caller came to its place in line.
pub(super) enum Joined {
    /// It has one.
    InLine {
        ticket: Ticket,
        delivered: oneshot::Receiver<Delivery>,
        /// Whether nobody drives the line yet.
        is_new_line: bool,
    },
    /// The same request waits already, and its caller is there.
    Twice,
}

impl State {
    /// Whether this very request has a place in line, kept or stood in.
    ///
    /// # Errors
    /// `RequestIdReused` when another body has it.
    pub(super) fn has_place(&mut self, request: &AcquireRequest) -> Result<bool, AcquireError> {
        let line = self.lines.get_mut(&request.resource);
        let same = line.zip(RequestKey::of(request));
        match same.and_then(|(line, key)| line.caller_of(&key)) {
            None => Ok(false),
            Some(same) if same.request.body() == request.body() => Ok(true),
            Some(_) => Err(AcquireError::RequestIdReused),
        }
    }

    /// Whether one more may stand in line.
    ///
    /// # Errors
    /// The bound that is reached.
    pub(super) fn check_room(&self, config: &Config) -> Result<(), AcquireError> {
        if self.waiting >= config.max_waiting {
            let limit = config.max_waiting;
            return Err(AcquireError::TooManyWaiting { limit });
        }
        if self.load() >= config.max_leases {
            let limit = config.max_leases;
            return Err(AcquireError::TooManyLeases { limit });
        }
        Ok(())
    }

    /// Takes a place at the end of the line, or the one that was kept for the same `requestId`.
    pub(super) fn join_line(&mut self, request: &AcquireRequest, arrived: Moment) -> Joined {
        let (deliver, delivered) = oneshot::channel();
        let key = RequestKey::of(request);
        let is_new_line = !self.lines.contains_key(&request.resource);
        let line = self.lines.entry(request.resource.clone()).or_default();
        if let Some(same) = key.and_then(|key| line.caller_of(&key)) {
            if same.is_there() {
                return Joined::Twice;
            }
            same.deliver = Some(deliver);
            same.arrived = arrived;
            let ticket = same.ticket;
            return Joined::InLine {
                ticket,
                delivered,
                is_new_line,
            };
        }
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        line.callers.push_back(Caller {
            ticket,
            request: request.clone(),
            arrived,
            deliver: Some(deliver),
            kept_until: arrived,
        });
        line.changed.notify_one();
        self.waiting += 1;
        Joined::InLine {
            ticket,
            delivered,
            is_new_line,
        }
    }

    /// The caller whose turn is next. Those who went away and whose place was kept long enough are
    /// taken out.
    pub(super) fn front_of(&mut self, resource: &Resource, now: Moment) -> Option<Front> {
        let line = self.lines.get_mut(resource)?;
        let before = line.callers.len();
        line.callers
            .retain(|caller| caller.is_there() || now < caller.kept_until);
        self.waiting -= before - line.callers.len();
        let front = line.callers.front()?;
        Some(Front {
            ticket: front.ticket,
            request: front.request.clone(),
            arrived: front.arrived,
            kept_until: (!front.is_there()).then_some(front.kept_until),
        })
    }

    /// The grant that a line was told of, and has not looked at.
    pub(super) fn told_grant(&self, resource: &Resource) -> Option<GrantId> {
        let told = self.lines.get(resource)?.told.as_ref()?;
        Some(told.value.grant.as_ref()?.id.clone())
    }

    /// What a line was told is old news.
    pub(super) fn forget_told(&mut self, resource: &Resource) {
        if let Some(line) = self.lines.get_mut(resource) {
            line.told = None;
        }
    }

    /// Whether anybody waits in line for a lock, or is about to come back to its place.
    pub(super) fn someone_is_in_line(&self, resource: &Resource, now: Moment) -> bool {
        is_awaited(&self.lines, resource, now)
    }

    /// Something changed for those who wait for a lock.
    pub(super) fn wake_line(&self, resource: &Resource) {
        if let Some(line) = self.lines.get(resource) {
            line.changed.notify_one();
        }
    }

    /// The same, for everybody who waits.
    pub(super) fn wake_lines(&self) {
        for line in self.lines.values() {
            line.changed.notify_one();
        }
    }

    /// How many wait for a lock, as far as is known here: the others in its queue, and the callers
    /// of this agent, who may have one place for all of them, none yet, or one that is about to go.
    pub(super) fn waiting_for(&self, lock: &Lock) -> usize {
        let ours = self.session().map(Live::key);
        let entries = lock.waiters.entries().iter();
        let others = entries.filter(|waiter| Some(waiter.claimant.key()) != ours);
        let others = others.count();
        let line = self.lines.get(&lock.resource);
        let callers = line.map_or(0, |line| line.callers.len());
        others + callers.max(lock.waiters.len() - others)
    }

    /// Takes a caller out of its line to answer it. None when it is no longer in it.
    pub(super) fn take_caller(&mut self, resource: &Resource, ticket: Ticket) -> Option<Caller> {
        let line = self.lines.get_mut(resource)?;
        let place = line.callers.iter().position(|c| c.ticket == ticket)?;
        let caller = line.callers.remove(place)?;
        line.changed.notify_one();
        self.waiting -= 1;
        Some(caller)
    }

    /// A caller went away, if it is still in its line. With a `requestId` its place is kept for a
    /// while.
    pub(super) fn leave_line(&mut self, resource: &Resource, ticket: Ticket, now: Moment) -> bool {
        let Some(line) = self.lines.get_mut(resource) else {
            return false;
        };
        let Some(caller) = line.callers.iter_mut().find(|c| c.ticket == ticket) else {
            return false;
        };
        if caller.request.request_id.is_some() {
            caller.deliver = None;
            caller.kept_until = now.after(KEPT_FOR);
            line.changed.notify_one();
        } else {
            // What would answer it goes with it; nobody listens.
            let _gone = self.take_caller(resource, ticket);
        }
        true
    }

    /// Takes every caller out of a line, to answer them all the same.
    pub(super) fn take_all_callers(
        &mut self,
        resource: &Resource,
    ) -> Vec<oneshot::Sender<Delivery>> {
        let Some(line) = self.lines.get_mut(resource) else {
            return Vec::new();
        };
        let callers: Vec<Caller> = line.callers.drain(..).collect();
        line.changed.notify_one();
        self.waiting -= callers.len();
        callers.into_iter().filter_map(|c| c.deliver).collect()
    }

    /// Takes a line away that nobody stands in; false when somebody does.
    pub(super) fn close_line(&mut self, resource: &Resource) -> bool {
        let is_empty = self
            .lines
            .get(resource)
            .is_none_or(|line| line.callers.is_empty());
        if is_empty {
            self.lines.remove(resource);
        }
        is_empty
    }
}

/// Whether anybody waits for a lock, or is about to come back to its place.
pub(super) fn is_awaited(
    lines: &BTreeMap<Resource, Line>,
    resource: &Resource,
    now: Moment,
) -> bool {
    let line = lines.get(resource);
    let mut callers = line.iter().flat_map(|line| line.callers.iter());
    callers.any(|caller| caller.is_there() || now < caller.kept_until)
}

impl Line {
    fn caller_of(&mut self, key: &RequestKey) -> Option<&mut Caller> {
        let mut callers = self.callers.iter_mut();
        callers.find(|caller| RequestKey::of(&caller.request).as_ref() == Some(key))
    }
}

impl Caller {
    fn is_there(&self) -> bool {
        self.deliver.as_ref().is_some_and(|d| !d.is_closed())
    }
}
