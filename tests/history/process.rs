//! One process of a history: it numbers its operations.

use super::event::{Event, Op, Phase};

/// Makes a process's events. The time is an argument.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    name: String,
    begun: u64,
}

impl Process {
    /// A process of this name, which no other of the run may have, not even an earlier life of it.
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            begun: 0,
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Begins an operation: record it before the request is sent. Its outcome needs its number.
    pub(crate) fn invoke(&mut self, at: u64, op: Op) -> Event {
        self.begin(at, Phase::Invoke, op)
    }

    /// Something that happened at this moment and is not a request.
    pub(crate) fn info(&mut self, at: u64, op: Op) -> Event {
        self.begin(at, Phase::Info, op)
    }

    /// An operation happened; the answer was read by now.
    pub(crate) fn ok(&self, at: u64, operation: u64, op: Op) -> Event {
        self.event(at, operation, Phase::Ok, op)
    }

    /// An operation did not happen and never will.
    pub(crate) fn fail(&self, at: u64, operation: u64, op: Op) -> Event {
        self.event(at, operation, Phase::Fail, op)
    }

    /// Whether an operation happened is not known.
    pub(crate) fn unknown(&self, at: u64, operation: u64, op: Op) -> Event {
        self.event(at, operation, Phase::Unknown, op)
    }

    fn begin(&mut self, at: u64, phase: Phase, op: Op) -> Event {
        self.begun += 1;
        self.event(at, self.begun, phase, op)
    }

    fn event(&self, at: u64, operation: u64, phase: Phase, op: Op) -> Event {
        Event {
            at,
            process: self.name.clone(),
            operation,
            phase,
            op,
        }
    }
}
