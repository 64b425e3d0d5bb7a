//! Those who are told of each change of one kind of object.

use futures::StreamExt as _;
use futures::channel::mpsc;

use crate::store::fleet::{Feed, Told};

/// How much a feed may have waiting for its reader; one that falls behind further is ended, and tells
/// everything anew.
pub(super) const BACKLOG_MAX: usize = 1_024;

pub(in crate::store::embedded) struct Tellers<T>(Vec<mpsc::Sender<Told<T>>>);

impl<T> Default for Tellers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone + Send + 'static> Tellers<T> {
    /// What is told from now on.
    pub(super) fn follow(&mut self) -> Feed<T> {
        let (teller, told) = mpsc::channel(BACKLOG_MAX);
        self.0.push(teller);
        told.boxed()
    }

    pub(in crate::store::embedded) fn tell(&mut self, told: &Told<T>) {
        self.0
            .retain_mut(|teller| teller.try_send(told.clone()).is_ok());
    }

    /// Whether anybody would hear it.
    pub(in crate::store::embedded) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
