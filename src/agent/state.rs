//! What the agent remembers, and the bounds on it. No I/O and no decisions: those are made by the
//! modules beside it, under the one mutex.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;
use tokio_util::sync::DropGuard;

use crate::protocol::ids::{GrantId, Resource};
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::core::Core;
use super::core::effect::{CallId, Reply};
use super::core::history::RequestKey;
use super::core::session::Live;
use super::election::Elections;
use super::events::Streams;
use super::journal::Writer;
use super::journal::record::SessionRecord;
use super::line::Line;
use super::resume::Left;

/// How many unknown own grants are remembered; a forgotten one is found again.
const SUSPECTS_MAX: usize = 1_000;

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
    /// Where what a restarted agent must know is written; none where nobody asked for that.
    pub(super) journal: Option<Writer>,
    /// What an earlier process left, while it is not known whether it can be taken up.
    pub(super) resuming: Option<Left>,
    /// When the timer wakes next.
    pub(super) next_timer: Moment,
    /// The agent has stopped and left promised leases to their session.
    pub(super) has_left: bool,
    /// How many attempts are under way: one for each try, and one for each line.
    pub(super) in_flight: usize,
    /// The grants that they are for.
    pub(super) claimed: BTreeSet<GrantId>,
    /// The same by lock.
    pub(super) under_way: BTreeMap<Resource, UnderWay>,
    /// The requests with an id that are under way.
    pub(super) asked: BTreeSet<RequestKey>,
    /// Who waits, by lock.
    pub(super) lines: BTreeMap<Resource, Line>,
    /// The streams of events that are open.
    pub(super) streams: Streams,
    /// How many wait in all lines.
    pub(super) waiting: usize,
    /// The last ticket that a caller in some line was given.
    pub(super) last_ticket: u64,
    /// Own grants that a read showed and that nobody here knew.
    suspects: BTreeSet<GrantId>,
    /// When the last attempt or wait ended; `core.own` has the same of leases.
    pub(super) idle_since: Moment,
    /// Who was told of the leads that leases are, and what the store said of others'.
    pub(super) elections: Elections,
}

/// The attempts under way at one lock.
#[derive(Default)]
pub(super) struct UnderWay {
    /// How many there are.
    pub(super) attempts: usize,
    /// The revision at which the watch told that our session does not hold the lock. A grant that
    /// was had before ended before its lease was made.
    pub(super) gone_at: Option<Revision>,
}

impl State {
    /// Returns the state of an agent that has done nothing yet.
    pub(super) fn new(core: Core) -> Self {
        Self {
            core,
            replies: BTreeMap::new(),
            last_call: 0,
            watch: None,
            journal: None,
            resuming: None,
            next_timer: Moment::default(),
            has_left: false,
            in_flight: 0,
            claimed: BTreeSet::new(),
            under_way: BTreeMap::new(),
            asked: BTreeSet::new(),
            lines: BTreeMap::new(),
            streams: Streams::default(),
            waiting: 0,
            last_ticket: 0,
            suspects: BTreeSet::new(),
            idle_since: Moment::default(),
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

    /// Notes an own grant that nobody here knows; says whether it was noted before.
    pub(super) fn suspected_before(&mut self, grant: &GrantId) -> bool {
        if self.suspects.len() >= SUSPECTS_MAX {
            self.suspects.clear();
        }
        !self.suspects.insert(grant.clone())
    }

    /// A request to the core, and what receives its answer.
    pub(super) fn expect_reply(&mut self) -> (CallId, oneshot::Receiver<Reply>) {
        let (reply, receiver) = oneshot::channel();
        self.last_call += 1;
        let call = CallId(self.last_call);
        self.replies.insert(call, reply);
        (call, receiver)
    }

    /// How much is held or under way; what the bound on leases counts.
    pub(super) fn load(&self) -> usize {
        self.core.own.len() + self.in_flight + self.core.releases.len() + self.waiting
    }

    /// How much of that is left where only promised leases are: these, and the grants that are not given
    /// back before the promises of the process before have passed.
    pub(super) fn left_at_stop(&self) -> usize {
        self.core.own.len() + self.core.releases.held_back()
    }

    /// Whether nothing needs the session: no lease, no kept grant, no attempt, no caller in line,
    /// no release under way.
    pub(super) fn is_idle(&self) -> bool {
        self.load() == 0 && self.core.own.warm_len() == 0
    }

    /// Since when that is so.
    pub(super) fn idle_since(&self) -> Option<Moment> {
        let since = self.idle_since.max(self.core.own.idle_since);
        self.is_idle().then_some(since)
    }

    /// Returns until when apps may believe what an earlier process promised them.
    pub(super) fn promised_until(&self) -> Moment {
        let session = self
            .resuming
            .as_ref()
            .and_then(|left| left.session.as_ref());
        let unresumed = session.map(SessionRecord::valid_until);
        unresumed
            .unwrap_or_default()
            .max(self.core.own.earlier.promised_until())
    }
}
