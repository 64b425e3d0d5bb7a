//! What the agent remembers of elections: its campaigns, the questions of apps, and what the store said.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::protocol::ids::Resource;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::store::Stored;

use super::seen::SeenElections;

/// What the agent remembers of elections.
#[derive(Default)]
pub(in crate::agent) struct Elections {
    /// Told when somebody leads who did not, also elsewhere.
    pub(in crate::agent) changed: Arc<Notify>,
    /// Those that the agent itself runs for.
    pub(in crate::agent) campaigns: BTreeSet<Resource>,
    /// What apps asked, about those of them that need an app.
    pub(in crate::agent) interests: BTreeMap<Resource, Interest>,
    /// What the store said.
    pub(in crate::agent) seen: SeenElections,
}

/// The apps' questions about one election.
pub(in crate::agent) struct Interest {
    pub(in crate::agent) asked_at: Moment,
    /// Whether the last question still counts; the campaign follows it.
    pub(in crate::agent) lasts: watch::Sender<bool>,
}

impl Interest {
    /// Returns an interest of which no app has asked yet, and what follows whether it lasts.
    pub(in crate::agent) fn new() -> (Self, watch::Receiver<bool>) {
        let (lasts, follows) = watch::channel(false);
        let interest = Self {
            asked_at: Moment::default(),
            lasts,
        };
        (interest, follows)
    }
}

impl Elections {
    /// Whether a question of an app about the election still counts.
    pub(in crate::agent) fn is_asked(&self, resource: &Resource) -> bool {
        let interest = self.interests.get(resource);
        interest.is_some_and(|interest| *interest.lasts.borrow())
    }

    /// Records that a lease of an election's lock began or ended at this moment: who led before is no
    /// news any more.
    pub(in crate::agent) fn record_change(&mut self, resource: &Resource, at: Moment) {
        self.seen.forget(resource, at);
        self.wake_streams();
    }

    /// Records a lock that was read, by a read that was sent at this moment; if it is an election's.
    pub(in crate::agent) fn record_read(
        &mut self,
        resource: &Resource,
        asked_at: Moment,
        read: Option<&Stored<Lock>>,
    ) {
        if self.seen.record_read(resource, asked_at, read) {
            self.wake_streams();
        }
    }

    /// Lets the streams look at what is true now.
    pub(in crate::agent) fn wake_streams(&self) {
        self.changed.notify_waiters();
    }
}
