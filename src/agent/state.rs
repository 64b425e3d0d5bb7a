//! What the agent remembers, under its one mutex. No I/O and no decisions.

pub(super) mod elections;
pub(super) mod seen;

use std::collections::BTreeMap;

use tokio::sync::oneshot;
use tokio_util::sync::DropGuard;

use crate::protocol::time::Moment;

use super::core::Core;
use super::core::effect::{CallId, Reply};
use super::core::session::Live;
use super::journal::Recorder;
use elections::Elections;

/// Everything the agent remembers.
pub(super) struct State {
    /// What decides about the session, and what was observed of the store.
    pub(super) core: Core,
    /// Those who wait for an answer of the core.
    pub(super) replies: BTreeMap<CallId, oneshot::Sender<Reply>>,
    /// The last request to the core.
    pub(super) last_call: u64,
    /// Closes the watch that is open.
    pub(super) watch: Option<DropGuard>,
    /// Where what a restarted agent must know is written. Without a state file it records nothing.
    pub(super) journal: Recorder,
    /// When the timer wakes next.
    pub(super) next_timer: Moment,
    /// The agent has stopped and left promised leases to their session.
    pub(super) has_left: bool,
    /// Who was told of the leads that leases are, and what the store said of others'.
    pub(super) elections: Elections,
}

impl State {
    /// Returns the state of an agent that has done nothing yet.
    pub(super) fn new(core: Core) -> Self {
        Self {
            core,
            replies: BTreeMap::new(),
            last_call: 0,
            watch: None,
            journal: Recorder::default(),
            next_timer: Moment::default(),
            has_left: false,
            elections: Elections::default(),
        }
    }

    /// The session, while there is one that may be believed.
    pub(super) const fn session(&self) -> Option<&Live> {
        self.core.live()
    }

    /// No new leases are given.
    pub(super) const fn is_draining(&self) -> bool {
        self.core.is_draining()
    }

    /// A request to the core, and what receives its answer.
    pub(super) fn expect_reply(&mut self) -> (CallId, oneshot::Receiver<Reply>) {
        let (reply, receiver) = oneshot::channel();
        self.last_call += 1;
        let call = CallId(self.last_call);
        self.replies.insert(call, reply);
        (call, receiver)
    }
}
