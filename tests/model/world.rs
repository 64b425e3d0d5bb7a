//! The whole world of a run as one value, and the steps it can take.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leasehold::protocol::ids::SessionId;
use leasehold::protocol::observed::Verdict;
use leasehold::protocol::time::Moment;
use leasehold::protocol::token::Seen;

use crate::clock::NodeClock;
use crate::lock_client::{Intent, verdict};
use crate::lock_history::{LockHistory, Violation};
use crate::node::{App, Call, LockClient, Node, Return, Role};
use crate::rules::{Budget, Rules};
use crate::store::{Store, Write};

/// Everything there is, at one real time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) store: Store,
    /// The last backup that was taken.
    pub(crate) backup: Option<Arc<Store>>,
    pub(crate) nodes: Vec<Node>,
    /// Writes whose senders timed out; each may be applied at any later time, or never.
    pub(crate) strays: Vec<Write>,
    pub(crate) ledgers: Vec<LockHistory>,
    pub(crate) left: Budget,
    /// What went wrong on the way here.
    pub(crate) flaws: BTreeSet<Violation>,
}

/// Which of an agent's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    /// That for its own session.
    Session,
    /// That for a lock.
    Lock(usize),
}

/// How a request and its answer travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pace {
    /// Sent, applied and answered before anything else happens.
    AtOnce,
    /// On its way to the store for any time.
    LateRequest,
    /// Applied at once, its answer on its way for any time.
    LateAnswer,
}

/// One step. A node comes first, then a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// Time advances to the next moment at which anything can become due.
    Advance,
    Ask(usize, usize, bool),
    AskAgain(usize, usize),
    End(usize, usize),
    HangUp(usize, usize),
    BeginSession(usize, Pace),
    Renew(usize, Pace),
    ReadOwnSession(usize, Pace),
    NoticeExpiry(usize),
    ReadLock(usize, usize, Pace),
    ReadRival(usize, usize, SessionId, Pace),
    Write(usize, usize, Intent, Pace),
    /// The agent answers an app that does not wait: the lock is held.
    Refuse(usize, usize),
    /// The agent releases the lease of a silent app.
    GiveUp(usize, usize),
    Apply(usize, Channel),
    Answer(usize, Channel),
    TimeOut(usize, Channel),
    ApplyStray(usize),
    LoseStray(usize),
    Crash(usize, Return),
    Restart(usize),
    DeleteSession(SessionId),
    DeleteLock(usize),
    ForceRelease(usize),
    TidyUp(usize),
    TakeBackup,
    Restore,
    /// A write with the n-th token returned for the lock reaches the resource, however late.
    WriteFenced(usize, usize),
}

impl Action {
    /// What kinds of steps this is one of.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &'static str> {
        let (kind, pace) = match self {
            Self::Advance => ("time passes", None),
            Self::Ask(..) => ("ask", None),
            Self::AskAgain(..) => ("ask again", None),
            Self::End(..) => ("end", None),
            Self::HangUp(..) => ("hang up", None),
            Self::BeginSession(_, pace) => ("begin a session", Some(pace)),
            Self::Renew(_, pace) => ("renew", Some(pace)),
            Self::ReadOwnSession(_, pace) => ("read the own session", Some(pace)),
            Self::NoticeExpiry(_) => ("notice expiry", None),
            Self::ReadLock(_, _, pace) => ("read a lock", Some(pace)),
            Self::ReadRival(_, _, _, pace) => ("read another session", Some(pace)),
            Self::Write(_, _, intent, pace) => (intent.name(), Some(pace)),
            Self::Refuse(..) => ("refuse", None),
            Self::GiveUp(..) => ("give up on a silent app", None),
            Self::Apply(..) => ("apply late", None),
            Self::Answer(..) => ("answer late", None),
            Self::TimeOut(..) => ("time out", None),
            Self::ApplyStray(_) => ("apply after the time-out", None),
            Self::LoseStray(_) => ("lose", None),
            Self::Crash(_, Return::WithState) => ("crash, keeping state", None),
            Self::Crash(_, Return::WithOlderState) => ("crash, keeping older state", None),
            Self::Crash(_, Return::WithoutState) => ("crash, losing state", None),
            Self::Crash(_, Return::Never) => ("crash for good", None),
            Self::Restart(_) => ("restart", None),
            Self::DeleteSession(_) => ("delete a session", None),
            Self::DeleteLock(_) => ("delete a lock", None),
            Self::ForceRelease(_) => ("force a release", None),
            Self::TidyUp(_) => ("tidy up", None),
            Self::TakeBackup => ("take a backup", None),
            Self::Restore => ("restore", None),
            Self::WriteFenced(..) => ("write to the resource", None),
        };
        let late = pace.and_then(|pace| match pace {
            Pace::AtOnce => None,
            Pace::LateRequest => Some("late request"),
            Pace::LateAnswer => Some("late answer"),
        });
        [kind].into_iter().chain(late)
    }
}

impl World {
    /// The world at its beginning: every app has just asked. An app that asks later is one whose agent begins later.
    pub(crate) fn new(rules: &Rules, fast_clocks: usize) -> Self {
        let store = Store::new(rules.locks);
        let nodes = (0..rules.nodes())
            .map(|node| Node {
                clock: NodeClock::new(node, fast_clocks >> node & 1 == 1),
                role: if node < rules.agents {
                    Role::Agent
                } else {
                    Role::Operator
                },
                down: None,
                sessions_begun: 0,
                grants_named: 0,
                renewals_left: rules.renewals_each,
                seen: (node >= rules.agents).then(|| Seen::from_list(store.revision)),
                live: None,
                promised: None,
                clients: vec![LockClient::idle(); rules.locks],
                apps: vec![
                    App {
                        tries_left: rules.tries_each + 1,
                        believes_until: None,
                    };
                    rules.locks
                ],
            })
            .collect();
        let mut world = Self {
            store,
            backup: None,
            nodes,
            strays: Vec::new(),
            ledgers: vec![LockHistory::default(); rules.locks],
            left: rules.budget,
            flaws: BTreeSet::new(),
        };
        for node in 0..rules.agents {
            for lock in 0..rules.locks {
                let now = world.now(node);
                let history = &mut world.ledgers[lock];
                world.nodes[node]
                    .ask(lock, rules.waits[0], now, rules, history)
                    .expect("nothing is told yet");
            }
        }
        world
    }

    pub(crate) fn now(&self, node: usize) -> Moment {
        self.nodes[node].clock.now()
    }

    /// The request of this channel.
    pub(crate) fn call(&self, node: usize, channel: Channel) -> Option<&Call> {
        let node = &self.nodes[node];
        match channel {
            Channel::Session => node.live.as_ref()?.call.as_ref(),
            Channel::Lock(lock) => node.clients[lock].call.as_ref(),
        }
    }

    /// The real time until anything becomes due on any node's clock.
    pub(crate) fn next_due(&self, rules: &Rules) -> Option<Duration> {
        let due = (0..self.nodes.len()).flat_map(|node| self.deadlines(node, rules));
        due.min()
    }

    fn deadlines(&self, index: usize, rules: &Rules) -> Vec<Duration> {
        let node = &self.nodes[index];
        let now = self.now(index);
        let mut due: Vec<Moment> = Vec::new();
        due.extend(node.apps.iter().filter_map(|app| app.believes_until));
        due.extend(node.promised);
        if node.is_up() {
            if let Some(keep) = node
                .keep()
                .filter(|_| node.is_busy() && !node.outlasts(&self.store, rules))
            {
                due.push(keep.valid_until());
                if node.renewals_left > 0 {
                    due.push(keep.renew_at(0.0));
                }
            }
            for (lock, client) in node.clients.iter().enumerate() {
                due.extend(
                    client
                        .lease
                        .as_ref()
                        .map(leasehold::protocol::lease::Lease::gives_up_at),
                );
                if !node.challenges(lock, rules) {
                    continue;
                }
                let Some(holder) = client.known().and_then(|(_, lock)| lock.grant.as_ref()) else {
                    continue;
                };
                let ttl = holder.holder.session_ttl;
                due.extend(client.rivals.iter().filter_map(|rival| {
                    match verdict(rival, ttl, now, rules) {
                        Verdict::MayLive { until } => Some(until),
                        Verdict::MayRevoke(_) | Verdict::Dead => None,
                    }
                }));
            }
        }
        due.into_iter()
            .filter(|moment| *moment > now)
            .map(|moment| node.clock.real_time_until(moment))
            .collect()
    }
}
