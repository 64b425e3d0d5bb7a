//! Records what the apps of a world requested, received and wrote as a history (`tests/history`) in
//! virtual time. The checker of histories, which also checks fault runs, is independent of the
//! invariants here.

use std::time::Duration;

use leasehold::protocol::ids::{LeaseId, Resource};
use leasehold::protocol::token::Token;

use crate::history::{Event, History, Op, OverriddenBy, Phase};
use crate::invariants::Promise;

/// With clocks that jump, the remaining time is unknown. This exceeds every jump.
const LEAP: Duration = Duration::from_secs(24 * 60 * 60);

/// A request without an answer yet.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    operation: u64,
    op: Op,
}

/// The events so far. It numbers the operations of all processes.
pub(crate) struct Recorder {
    events: Vec<Event>,
    begun: u64,
}

impl Recorder {
    pub(crate) fn new(claims_exclusion: bool) -> Self {
        let mut recorder = Self {
            events: Vec::new(),
            begun: 0,
        };
        let run = Op::Run {
            // The seed is known where the history is checked.
            seed: 0,
            clock_bound_ns: if claims_exclusion { 0 } else { nanos(LEAP) },
            clock_rate_ppm: 0,
            exclusion: claims_exclusion,
            loss_told_within_ns: None,
        };
        recorder.note(Duration::ZERO, "world", run);
        recorder
    }

    /// Returns the history of the events.
    pub(crate) fn history(&mut self) -> History {
        History::of(std::mem::take(&mut self.events))
    }

    fn push(&mut self, at: Duration, process: &str, operation: u64, phase: Phase, op: Op) {
        self.events.push(Event {
            at: nanos(at),
            process: process.to_owned(),
            operation,
            phase,
            op,
        });
    }

    /// An event that is not a request.
    pub(crate) fn note(&mut self, at: Duration, who: &str, op: Op) {
        self.begun += 1;
        self.push(at, who, self.begun, Phase::Info, op);
    }

    /// Records a request before it is sent.
    pub(crate) fn asks(&mut self, at: Duration, who: &str, op: Op) -> Invocation {
        self.begun += 1;
        let operation = self.begun;
        self.push(at, who, operation, Phase::Invoke, op.clone());
        Invocation { operation, op }
    }

    /// Records a successful outcome with its result.
    pub(crate) fn yes(&mut self, at: Duration, who: &str, asked: &Invocation, op: Op) {
        self.push(at, who, asked.operation, Phase::Ok, op);
    }

    /// Records that a person, or a restored backup, ended grants.
    pub(crate) fn overridden(
        &mut self,
        at: Duration,
        resource: Option<&Resource>,
        by: OverriddenBy,
    ) {
        let op = Op::overridden(resource.map(Resource::as_str), by);
        self.note(at, "admin", op);
    }

    /// Records that an app receives a confirmation of its lease.
    pub(crate) fn promise(&mut self, promise: &Promise) {
        let until = nanos(promise.until);
        let lease = promise.lease.as_str();
        let op = match &promise.request.op {
            Op::Acquire { resource, .. } => {
                Op::granted(resource, lease, promise.token.get(), until)
            }
            _ => Op::renewed(lease, until),
        };
        self.yes(promise.at, &promise.app, &promise.request, op);
    }

    /// Records a write that arrives at the guarded resource, and its immediate decision.
    pub(crate) fn written(&mut self, at: Duration, who: &str, asked: &Invocation, is_taken: bool) {
        if let Op::Write {
            register,
            token,
            value,
            ..
        } = &asked.op
        {
            let decided = Op::decided(register, *token, value, is_taken);
            self.note(at, "register", decided);
        }
        let phase = if is_taken { Phase::Ok } else { Phase::Fail };
        self.push(at, who, asked.operation, phase, asked.op.clone());
    }

    /// Records a write of an app before it is sent.
    pub(crate) fn writes(
        &mut self,
        at: Duration,
        who: &str,
        to: &Resource,
        lease: &LeaseId,
        token: Token,
    ) -> Invocation {
        let value = format!("{who} {}", self.begun);
        let op = Op::write(to.as_str(), lease.as_str(), token.get(), &value);
        self.asks(at, who, op)
    }
}

/// Returns a time in the unit of histories.
pub(crate) fn nanos(at: Duration) -> u64 {
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}
