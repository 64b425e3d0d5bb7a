//! One process of a history, which numbers its operations.

use super::event::{Event, Op, Phase};

/// Creates a process's events. The time is an argument.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    name: String,
    begun: u64,
}

impl Process {
    /// Returns a process of this name, which must be unique in the run, including processes before
    /// a restart.
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            begun: 0,
        }
    }

    /// Returns its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Begins an operation: record it before the request is sent. Its outcome needs its number.
    pub(crate) fn invoke(&mut self, at: u64, op: Op) -> Event {
        self.begin(at, Phase::Invoke, op)
    }

    /// Returns an event of this moment that is not a request.
    pub(crate) fn info(&mut self, at: u64, op: Op) -> Event {
        self.begin(at, Phase::Info, op)
    }

    /// Returns the `ok` of an operation. The answer was read by this time.
    pub(crate) fn ok(&self, at: u64, operation: u64, op: Op) -> Event {
        self.event(at, operation, Phase::Ok, op)
    }

    /// Returns the `fail` of an operation: it did not happen and never will.
    pub(crate) fn fail(&self, at: u64, operation: u64, op: Op) -> Event {
        self.event(at, operation, Phase::Fail, op)
    }

    /// Returns an unknown outcome of an operation.
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
