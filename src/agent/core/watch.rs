//! The one watch of an agent, on the locks that its session holds: when it is opened again, and
//! when what it missed is listed instead.
//!
//! It only makes things fast. What it reports is older than its arrival, so grants and losses are
//! compared with the revisions that the agent knows, and waiters read the lock from time to time as
//! if no watch existed.

use std::time::Duration;

use crate::agent::api::AcquireError;
use crate::protocol::ids::SessionId;
use crate::protocol::lock::Lock;
use crate::protocol::object::{Page, StoreError};
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::backoff::jittered;
use super::effect::{Answer, Effect, OpId, StoreCall, WatchCommand, WatchId, WatchInput};
use super::env::{Env, Machine};
use super::limits::CALL_LIMIT;
use super::report::Report;

/// The longest pause before the watch is opened again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A watch that reports nothing for so long, not even a bookmark or its end, is broken without an
/// error: the API server ends each after five minutes.
const LONGEST_SILENCE: Duration = Duration::from_secs(330);
/// How often a watch may fail at one revision before the locks are listed: one event may fail each.
const FAILURES_AT_ONE_REVISION: u32 = 4;

/// The watch of one session.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    session: SessionId,
    id: WatchId,
    state: State,
    /// Every event up to this revision was received.
    after: Revision,
    /// Up to where a read showed what the watch should have reported.
    late: Revision,
    opened_at: Moment,
    /// Failed openings and short lives in a row.
    failures: u32,
    /// Failures at one revision in a row.
    stuck: u32,
    /// The spread of the pause before a list: all agents get the same error at once.
    spread: Duration,
}

#[derive(Clone, Debug)]
enum State {
    Opening,
    Open { silent_until: Moment },
    Pausing { until: Moment, then: Then },
    Listing(OpId),
}

/// What follows a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Open,
    List,
}

impl Watch {
    /// Opens a watch on what a session holds, after a revision. `last` names the watch before.
    pub(super) fn open(
        session: SessionId,
        last: WatchId,
        after: Revision,
        spread: Duration,
        env: &mut Env,
    ) -> Self {
        let mut watch = Self {
            session,
            id: last,
            state: State::Opening,
            after,
            late: Revision::default(),
            opened_at: env.now,
            failures: 0,
            stuck: 0,
            spread,
        };
        watch.reopen(env);
        watch
    }

    pub(super) const fn session(&self) -> &SessionId {
        &self.session
    }

    pub(super) const fn id(&self) -> WatchId {
        self.id
    }

    /// Returns when `timer` has something to do.
    pub(super) const fn timeout(&self) -> Option<Moment> {
        match self.state {
            State::Open { silent_until } => Some(silent_until),
            State::Pausing { until, .. } => Some(until),
            State::Opening | State::Listing(_) => None,
        }
    }

    /// Does what is due.
    pub(super) fn timer(&mut self, env: &mut Env) {
        match self.state {
            State::Open { silent_until } if env.now >= silent_until => {
                env.out.push(Effect::Watch(WatchCommand::Close));
                self.interrupted(Then::Open, env);
            }
            State::Pausing { until, then } if env.now >= until => match then {
                Then::Open => self.reopen(env),
                Then::List => self.list(env),
            },
            State::Opening | State::Open { .. } | State::Pausing { .. } | State::Listing(_) => {}
        }
    }

    /// Takes what happened to the watch.
    pub(super) fn happened(&mut self, input: &WatchInput, env: &mut Env) {
        if matches!(self.state, State::Pausing { .. } | State::Listing(_)) {
            // It was closed before.
            return;
        }
        match input {
            WatchInput::Opened => {
                self.mark_open(env.now);
                self.check_late(env);
            }
            WatchInput::Event(event) => {
                if event.revision() > self.after {
                    self.after = event.revision();
                    self.stuck = 0;
                }
                self.mark_open(env.now);
                self.check_late(env);
            }
            WatchInput::Ended => {
                self.stuck = 0;
                self.interrupted(Then::Open, env);
            }
            WatchInput::Failed(error) => self.failed(error.clone(), env),
        }
    }

    /// A read showed a write that the watch should have reported.
    pub(super) fn is_late(&mut self, revision: Revision, env: &mut Env) {
        self.late = self.late.max(revision);
        self.check_late(env);
    }

    /// Takes the answer to its list. Returns the locks that the session holds.
    pub(super) fn answered(
        &mut self,
        op: OpId,
        answer: Answer,
        env: &mut Env,
    ) -> Option<Box<Page<Lock>>> {
        if !matches!(self.state, State::Listing(listing) if listing == op) {
            return None;
        }
        let error = match answer.into_page() {
            Ok(page) => {
                self.after = page.revision;
                self.stuck = 0;
                self.reopen(env);
                return Some(page);
            }
            Err(AcquireError::Store(error)) => error,
            Err(_) => StoreError::no_result(),
        };
        env.out
            .report(Report::ListingFailed(self.session.clone(), error));
        let until = env.pause(self.failures, LONGEST_PAUSE);
        self.failures = (self.failures + 1).min(16);
        let then = Then::List;
        self.state = State::Pausing { until, then };
        None
    }

    fn reopen(&mut self, env: &mut Env) {
        self.opened_at = env.now;
        self.state = State::Opening;
        // What a closed watch still reports has another name.
        self.id = self.id.next();
        let open = WatchCommand::Open(self.id, self.session.clone(), self.after);
        env.out.push(Effect::Watch(open));
    }

    fn list(&mut self, env: &mut Env) {
        let call = StoreCall::ListHeld(self.session.clone());
        self.state = State::Listing(env.call(Machine::Watch, call, CALL_LIMIT));
    }

    fn mark_open(&mut self, now: Moment) {
        if let State::Opening | State::Open { .. } = self.state {
            let silent_until = now.after(LONGEST_SILENCE);
            self.state = State::Open { silent_until };
        }
    }

    /// A late watch may continue to report old events for long, so what it missed is listed. A
    /// watch that reported as much since, or was opened behind it, is not late.
    fn check_late(&mut self, env: &mut Env) {
        if matches!(self.state, State::Open { .. }) && self.late > self.after {
            env.out.push(Effect::Watch(WatchCommand::Close));
            self.interrupted(Then::List, env);
        }
    }

    fn failed(&mut self, error: StoreError, env: &mut Env) {
        let was_open = matches!(self.state, State::Open { .. });
        let mut then = if error.is_transient() {
            Then::Open
        } else {
            Then::List
        };
        if was_open && then == Then::Open {
            self.stuck += 1;
            if self.stuck.is_multiple_of(FAILURES_AT_ONE_REVISION) {
                then = Then::List;
            }
        }
        env.out
            .report(Report::WatchInterrupted(self.session.clone(), error));
        self.interrupted(then, env);
        if let State::Pausing { until, then } = &mut self.state
            && *then == Then::List
        {
            *until = until.after(jittered(env.rng, self.spread));
        }
    }

    /// A watch that lived for a while is opened again at once, others after a growing pause.
    fn interrupted(&mut self, then: Then, env: &mut Env) {
        if env.now.since(self.opened_at) >= LONGEST_PAUSE {
            self.failures = 0;
        }
        let until = env.pause(self.failures, LONGEST_PAUSE);
        self.failures = (self.failures + 1).min(16);
        self.state = State::Pausing { until, then };
    }
}
