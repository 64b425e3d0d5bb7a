//! What shows the agent which locks its live session holds: the watch, and the lists of the warm poll.
//! Both begin and end with the session.

use std::time::Duration;

use crate::protocol::ids::SessionId;
use crate::protocol::lock::Lock;
use crate::protocol::object::Page;
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::effect::{Answer, Effect, OpId, WatchCommand, WatchId, WatchInput};
use super::env::{Env, Machine};
use super::own::Own;
use super::session::Live;
use super::warm_poll::WarmPoll;
use super::watch::Watch;

/// The watch and the poll of the live session.
#[derive(Clone, Debug)]
pub(super) struct Watching {
    period: Duration,
    watch: Option<Watch>,
    last: WatchId,
    poll: Option<WarmPoll>,
}

impl Watching {
    pub(super) fn new(period: Duration) -> Self {
        Self {
            period,
            watch: None,
            last: WatchId::default(),
            poll: None,
        }
    }

    /// Ends with a session that is no longer live, and begins with one that is.
    pub(super) fn follow(&mut self, live: Option<&Live>, env: &mut Env) {
        let watched = self.watch.as_ref().map(Watch::session);
        if watched == live.map(Live::id) {
            return;
        }
        if let Some(watch) = &self.watch {
            self.last = watch.id();
            env.out.push(Effect::Watch(WatchCommand::Close));
        }
        (self.watch, self.poll) = (None, None);
        let Some(live) = live else { return };
        // Nothing was the session's before it began, so nothing is missed from there on.
        let (session, listed) = (live.id().clone(), live.listed());
        self.poll = Some(WarmPoll::new(session.clone(), self.period, env));
        // The spread of the pause before what a watch missed is listed.
        let spread = self.period / 10;
        self.watch = Some(Watch::open(session, self.last, listed, spread, env));
    }

    /// Returns when `timer` has something to do.
    pub(super) fn timeout(&self) -> Option<Moment> {
        let watch = self.watch.as_ref().and_then(Watch::timeout);
        let poll = self.poll.as_ref().and_then(WarmPoll::timeout);
        watch.into_iter().chain(poll).min()
    }

    /// Does what is due.
    pub(super) fn timer(&mut self, own: &mut Own, env: &mut Env) {
        if let Some(watch) = &mut self.watch {
            watch.timer(env);
        }
        if let Some(poll) = &mut self.poll {
            poll.timer(own, env);
        }
    }

    /// Takes what happened to a watch. Returns whether it is the one that is open.
    pub(super) fn happened(&mut self, id: WatchId, input: &WatchInput, env: &mut Env) -> bool {
        let watch = self.watch.as_mut().filter(|watch| watch.id() == id);
        let is_open = watch.is_some();
        if let Some(watch) = watch {
            watch.happened(input, env);
        }
        is_open
    }

    /// Takes the answer to a list. Returns the session and what it holds.
    pub(super) fn answered(
        &mut self,
        machine: &Machine,
        op: OpId,
        answer: Answer,
        env: &mut Env,
    ) -> Option<(SessionId, Box<Page<Lock>>)> {
        if *machine == Machine::WarmPoll {
            return self.poll.as_mut()?.answered(op, answer, env);
        }
        let watch = self.watch.as_mut()?;
        let page = watch.answered(op, answer, env)?;
        Some((watch.session().clone(), page))
    }

    /// A read showed what the watch should have reported by now.
    pub(super) fn is_late(&mut self, revision: Revision, env: &mut Env) {
        if let Some(watch) = &mut self.watch {
            watch.is_late(revision, env);
        }
    }

    #[cfg(test)]
    pub(super) fn id(&self) -> Option<WatchId> {
        self.watch.as_ref().map(Watch::id)
    }
}
