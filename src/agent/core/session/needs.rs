//! The claims that wait for the session.

use crate::agent::api::AcquireError;
use crate::protocol::ids::Resource;
use crate::protocol::time::Moment;

/// The answer to a need.
pub(in crate::agent::core) type Ready = (Resource, Result<(), AcquireError>);

/// The claims that wait for the session, and the answers that were not taken yet.
#[derive(Clone, Debug, Default)]
pub(in crate::agent::core) struct Needs {
    waiting: Vec<Need>,
    ready: Vec<Ready>,
    /// All answers.
    #[cfg(test)]
    pub(in crate::agent::core) answered: Vec<Ready>,
}

#[derive(Clone, Debug)]
struct Need {
    /// The lock whose claim needs it.
    resource: Resource,
    until: Moment,
}

impl Needs {
    pub(super) fn add(&mut self, resource: Resource, until: Moment) {
        self.waiting.push(Need { resource, until });
    }

    /// Refuses one that does not wait.
    pub(super) fn refuse(&mut self, resource: Resource, error: AcquireError) {
        self.ready.push((resource, Err(error)));
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) const fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Answers all that wait.
    pub(super) fn answer(&mut self, answer: &Result<(), AcquireError>) {
        let needs = self.waiting.drain(..);
        self.ready
            .extend(needs.map(|need| (need.resource, answer.clone())));
    }

    /// Refuses those that will have waited too long when the next attempt is made.
    pub(super) fn refuse_late(&mut self, next: Moment, error: &AcquireError) {
        let late = self.waiting.extract_if(.., |need| next >= need.until);
        self.ready
            .extend(late.map(|need| (need.resource, Err(error.clone()))));
    }

    /// Takes the answers.
    pub(super) fn take_ready(&mut self) -> Vec<Ready> {
        #[cfg(test)]
        self.answered.extend(self.ready.iter().cloned());
        std::mem::take(&mut self.ready)
    }
}
