//! A node: a clock, the agent (or the operator) that runs there, and the apps beside it.
//!
//! This file has the state; `session.rs` and `lock_client.rs` drive the protocol with it. Agent and app are never
//! forced to take a step. So a pause (SIGSTOP) of either, of any length and between any two steps, needs no action of
//! its own: it is every run in which only others and time advance meanwhile.

use std::sync::Arc;

use leasehold::protocol::ids::{GrantId, SessionId};
use leasehold::protocol::lease::{Lease, Tenure};
use leasehold::protocol::lock::Lock;
use leasehold::protocol::observed::{Observed, Sight};
use leasehold::protocol::session::{KeepAlive, Session};
use leasehold::protocol::time::Moment;
use leasehold::protocol::token::Seen;

use crate::clock::NodeClock;
use crate::store::{Answer, Versioned, Write};

/// A machine with one agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) clock: NodeClock,
    pub(crate) role: Role,
    /// How the process comes back, while it is down.
    pub(crate) down: Option<Return>,
    /// Sessions begun; it names the next one.
    pub(crate) sessions_begun: u8,
    /// Grant ids made; it names the next one.
    pub(crate) grants_named: u8,
    /// The renewals left in this run; an agent without any hangs for good.
    pub(crate) renewals_left: u8,
    pub(crate) seen: Option<Seen>,
    pub(crate) live: Option<Live>,
    /// Until when apps may believe what a state file does not say.
    pub(crate) promised: Option<Moment>,
    pub(crate) clients: Vec<LockClient>,
    pub(crate) apps: Vec<App>,
}

/// What runs on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// An agent with its app.
    Agent,
    /// The operator: it holds nothing and takes over for others.
    Operator,
}

/// How a crashed process comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Return {
    /// With its state file.
    WithState,
    /// With a copy of it from before its leases were granted.
    WithOlderState,
    /// Without it: as a new session under a new name.
    WithoutState,
    /// Not at all.
    Never,
}

impl Return {
    /// Whether it knows its session.
    pub(crate) fn has_state(self) -> bool {
        matches!(self, Self::WithState | Self::WithOlderState)
    }
}

/// The agent's own session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Live {
    pub(crate) id: SessionId,
    /// None before the session is known to exist, and after a restart before it was renewed.
    pub(crate) keep: Option<KeepAlive>,
    /// As last read or written.
    pub(crate) copy: Option<Versioned<Session>>,
    /// Before the first try of the write that is not confirmed yet.
    pub(crate) first_sent: Option<Moment>,
    /// Known from a state file; a renewal of the version in there must succeed before anything is
    /// believed.
    pub(crate) resuming: bool,
    pub(crate) call: Option<Call>,
    pub(crate) must_read: bool,
}

/// The one request that is on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    /// Sent and not applied yet.
    Sent(Write),
    /// Applied (or read); the answer is on its way.
    Answered {
        answer: Answer,
        /// Reads are not worth giving up on: reading again is the same.
        of_write: bool,
    },
}

/// What an agent does about one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LockClient {
    pub(crate) want: Option<Want>,
    /// The grant, from when it was first served.
    pub(crate) tenure: Option<Tenure>,
    /// Resumed: the rest of the grant's tokens is spent.
    pub(crate) spent: bool,
    pub(crate) lease: Option<Lease>,
    /// A grant or a queue entry that is being released until it is seen gone.
    pub(crate) leaving: Option<GrantId>,
    pub(crate) view: View,
    /// Other sessions, as far as the lock names them, by name.
    pub(crate) rivals: Vec<Rival>,
    pub(crate) call: Option<Call>,
    pub(crate) must_read: bool,
}

/// An app's request that is not answered yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Want {
    pub(crate) grant: GrantId,
    /// When the app sent it. It is taken to arrive at once: arriving later only makes the
    /// deadline that the app counts earlier.
    pub(crate) asked: Moment,
    /// Whether it waits in the queue.
    pub(crate) waits: bool,
}

/// A lock as it was last read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum View {
    Unknown,
    Missing,
    Known(Versioned<Lock>),
}

/// Another session as a challenger sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rival {
    pub(crate) id: SessionId,
    pub(crate) sight: Sight,
    pub(crate) observed: Observed,
    pub(crate) copy: Option<Arc<Session>>,
}

/// The app's side of one lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct App {
    /// How often it will still ask.
    pub(crate) tries_left: u8,
    /// Until when it believes that it may act; none when it never held or has ended it.
    pub(crate) believes_until: Option<Moment>,
}

impl Node {
    /// Whether the process can take steps.
    pub(crate) fn is_up(&self) -> bool {
        self.down.is_none()
    }

    /// Whether its session is valid by its own clock.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        self.keep().is_some_and(|keep| keep.is_valid(now))
    }

    pub(crate) fn keep(&self) -> Option<&KeepAlive> {
        self.live.as_ref()?.keep.as_ref()
    }

    pub(crate) fn session_id(&self) -> Option<&SessionId> {
        self.live.as_ref().map(|live| &live.id)
    }

    /// Whether anything hangs on the session, so that its deadlines matter.
    pub(crate) fn is_busy(&self) -> bool {
        self.clients.iter().any(LockClient::is_busy)
    }

    pub(crate) fn believes(&self, lock: usize, now: Moment) -> bool {
        self.apps[lock]
            .believes_until
            .is_some_and(|until| now < until)
    }
}

impl LockClient {
    pub(crate) fn idle() -> Self {
        Self {
            want: None,
            tenure: None,
            spent: false,
            lease: None,
            leaving: None,
            view: View::Unknown,
            rivals: Vec::new(),
            call: None,
            must_read: false,
        }
    }

    pub(crate) fn drop_tenure(&mut self) {
        self.tenure = None;
        self.lease = None;
        self.spent = false;
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.want.is_some() || self.tenure.is_some() || self.leaving.is_some()
    }

    /// The lock as last read, with its revision.
    pub(crate) fn known(&self) -> Option<&Versioned<Lock>> {
        match &self.view {
            View::Known(known) => Some(known),
            View::Unknown | View::Missing => None,
        }
    }

    pub(crate) fn rival(&self, id: &SessionId) -> Option<&Rival> {
        self.rivals.iter().find(|rival| rival.id == *id)
    }
}

impl App {
    /// It may act until then; an earlier promise still holds.
    pub(crate) fn believe(&mut self, until: Moment) {
        self.believes_until = self.believes_until.max(Some(until));
    }
}

impl View {
    pub(crate) fn of(found: Option<Versioned<Lock>>) -> Self {
        found.map_or(Self::Missing, Self::Known)
    }

    /// Whether reading would show something else.
    pub(crate) fn differs(&self, stored: Option<&Versioned<Lock>>) -> bool {
        match (self, stored) {
            (Self::Unknown, _) => true,
            (Self::Missing, stored) => stored.is_some(),
            (Self::Known(known), stored) => stored.is_none_or(|(at, _)| *at != known.0),
        }
    }
}
