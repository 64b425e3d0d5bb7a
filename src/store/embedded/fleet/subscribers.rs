//! The subscribers to the changes of one kind of object.

use futures::StreamExt as _;
use futures::channel::mpsc;

use crate::store::fleet::{Feed, FeedEvent};

/// The maximum backlog of a feed. A feed that falls behind further is ended, and lists again.
pub(super) const BACKLOG_MAX: usize = 1_024;

pub(in crate::store::embedded) struct Subscribers<T>(Vec<mpsc::Sender<FeedEvent<T>>>);

impl<T> Default for Subscribers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone + Send + 'static> Subscribers<T> {
    /// Returns a feed of all later changes.
    pub(super) fn subscribe(&mut self) -> Feed<T> {
        let (sender, receiver) = mpsc::channel(BACKLOG_MAX);
        self.0.push(sender);
        receiver.boxed()
    }

    pub(in crate::store::embedded) fn publish(&mut self, event: &FeedEvent<T>) {
        self.0
            .retain_mut(|sender| sender.try_send(event.clone()).is_ok());
    }

    /// Returns whether no subscriber exists.
    pub(in crate::store::embedded) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
