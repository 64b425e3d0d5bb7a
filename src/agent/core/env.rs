//! What the machines of the core work with: the context of an input, and the outbox of effects and
//! calls.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::protocol::ids::{GrantId, LeaseId, Resource};
use crate::protocol::time::{Moment, WallTime};

use super::backoff::{Rng, pause};
use super::effect::{Effect, OpId, StoreCall};
use super::horizon::{Horizon, SeenAtSend};
use super::report::Report;

/// An unanswered call counts as `Ambiguous` this long after its time limit: the core does not
/// depend on the driver to make progress.
const OVERDUE_AFTER: Duration = Duration::from_secs(1);

/// The context of an input.
pub(in crate::agent) struct Cx<'a> {
    /// The time.
    pub(in crate::agent) now: Moment,
    /// The wall-clock time. Informational.
    pub(in crate::agent) wall: WallTime,
    /// Names and jitter.
    pub(in crate::agent) rng: &'a mut dyn Rng,
}

/// What a machine works with: the context of the input, and what all machines share.
pub(super) struct Env<'a> {
    pub(super) now: Moment,
    pub(super) wall: WallTime,
    pub(super) rng: &'a mut dyn Rng,
    pub(super) out: &'a mut Outbox,
    pub(super) horizon: &'a mut Horizon,
}

impl<'a> Env<'a> {
    pub(super) fn of(cx: &'a mut Cx<'_>, out: &'a mut Outbox, horizon: &'a mut Horizon) -> Self {
        Self {
            now: cx.now,
            wall: cx.wall,
            rng: &mut *cx.rng,
            out,
            horizon,
        }
    }

    /// Asks for a call to the store.
    pub(super) fn call(&mut self, machine: Machine, call: StoreCall, limit: Duration) -> OpId {
        self.call_before(machine, call, limit, None)
    }

    /// Asks for a call to the store that is not sent any more from a moment on.
    pub(super) fn call_before(
        &mut self,
        machine: Machine,
        call: StoreCall,
        limit: Duration,
        not_after: Option<Moment>,
    ) -> OpId {
        let reads = match &call {
            StoreCall::GetLock(resource) | StoreCall::GetLockWithRevision(resource) => {
                Some(resource.clone())
            }
            _ => None,
        };
        let in_flight = InFlight {
            machine,
            reads,
            sent_at: self.now,
            before: self.horizon.at_send(),
            overdue_at: self.now.after(limit).after(OVERDUE_AFTER),
        };
        self.out.call(call, limit, not_after, in_flight)
    }

    /// Returns the end of a random pause after so many failed attempts.
    pub(super) fn pause(&mut self, failures: u32, longest: Duration) -> Moment {
        self.now.after(pause(self.rng, failures, longest))
    }
}

/// The machine that a call belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Machine {
    Session,
    Ending,
    Watch,
    WarmPoll,
    Release(GrantId),
    Leftover(GrantId),
    Lost(LeaseId),
    Claim(Resource),
}

/// The effects that the driver has not taken yet, and the calls that are in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Outbox {
    effects: VecDeque<Effect>,
    /// One waking after a step is enough, however many leases have ended in it.
    wakes_streams: bool,
    something_ended: bool,
    outlook_changed: bool,
    in_flight: BTreeMap<OpId, InFlight>,
    /// No call is overdue before this.
    next_overdue: Option<Moment>,
    last_op: u64,
}

/// A call that was not answered yet.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    /// The machine that waits for the answer.
    pub(super) machine: Machine,
    /// What the answer of a list is compared with.
    pub(super) before: SeenAtSend,
    /// The lock that is read.
    pub(super) reads: Option<Resource>,
    pub(super) sent_at: Moment,
    overdue_at: Moment,
}

impl InFlight {
    pub(super) const fn is_of_a_claim(&self) -> bool {
        matches!(self.machine, Machine::Claim(_))
    }
}

impl Outbox {
    pub(super) fn push(&mut self, effect: Effect) {
        match effect {
            Effect::WakeStreams => self.wakes_streams = true,
            Effect::SomethingEnded => self.something_ended = true,
            Effect::OutlookChanged => self.outlook_changed = true,
            effect => self.effects.push_back(effect),
        }
    }

    pub(super) fn report(&mut self, report: impl Into<Report>) {
        self.push(Effect::Report(report.into()));
    }

    fn call(
        &mut self,
        call: StoreCall,
        limit: Duration,
        not_after: Option<Moment>,
        in_flight: InFlight,
    ) -> OpId {
        self.last_op += 1;
        let op = OpId(self.last_op);
        let overdue_at = in_flight.overdue_at;
        let next = self.next_overdue.unwrap_or(overdue_at);
        self.next_overdue = Some(next.min(overdue_at));
        self.in_flight.insert(op, in_flight);
        self.push(Effect::Call {
            op,
            call,
            limit,
            not_after,
        });
        op
    }

    pub(super) fn poll(&mut self) -> Option<Effect> {
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        if std::mem::take(&mut self.wakes_streams) {
            return Some(Effect::WakeStreams);
        }
        if std::mem::take(&mut self.outlook_changed) {
            return Some(Effect::OutlookChanged);
        }
        std::mem::take(&mut self.something_ended).then_some(Effect::SomethingEnded)
    }

    /// Returns the call that is answered, once.
    pub(super) fn answered(&mut self, op: OpId) -> Option<InFlight> {
        let call = self.in_flight.remove(&op);
        if self.in_flight.is_empty() {
            self.next_overdue = None;
        }
        call
    }

    /// Returns whether a call was not answered yet.
    pub(super) fn is_in_flight(&self, op: OpId) -> bool {
        self.in_flight.contains_key(&op)
    }

    /// Returns a call that the driver should have answered by now.
    pub(super) fn overdue(&mut self, now: Moment) -> Option<OpId> {
        if self.next_overdue.is_none_or(|next| now < next) {
            return None;
        }
        let mut calls = self.in_flight.iter();
        let overdue = calls.find(|(_, call)| now >= call.overdue_at);
        let overdue = overdue.map(|(op, _)| *op);
        if overdue.is_none() {
            let calls = self.in_flight.values();
            self.next_overdue = calls.map(|call| call.overdue_at).min();
        }
        overdue
    }

    /// Returns whether a machine has two calls in flight.
    #[cfg(test)]
    pub(super) fn has_second_call(&self) -> bool {
        let machines = self.in_flight.values().map(|call| &call.machine);
        // A session that is ended leaves its call to the ending, and several sessions may be ending.
        let of_sessions = [&Machine::Session, &Machine::Ending];
        let machines = machines.filter(|machine| !of_sessions.contains(machine));
        let mut machines: Vec<_> = machines.collect();
        let calls = machines.len();
        machines.sort();
        machines.dedup();
        machines.len() < calls
    }

    /// Returns when a call may be overdue.
    pub(super) const fn next_overdue(&self) -> Option<Moment> {
        self.next_overdue
    }
}
