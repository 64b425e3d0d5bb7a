//! The core as its driver sees it: inputs go in, effects come out, nothing runs.

mod acquiring;
mod claims;
mod leases;
mod model;
mod observed;
mod refused;
mod releases;
mod resuming;
mod session;
mod store;
mod watch;
mod worlds;

use std::collections::VecDeque;
use std::time::Duration;

use super::backoff::Rng;
use super::effect::{Answer, Record, StoreCall, WatchCommand, WatchInput};
use super::*;
use crate::agent::api::AcquireError;
use crate::agent::core::acquiring::AcquireConfig;
use crate::agent::core::session::SessionConfig;
use crate::protocol::ids::SessionId;
use crate::protocol::key::GrantKey;
use crate::protocol::object::{Original, Page};
use crate::protocol::session::{PodRef, Revocation, RevokeReason};
use crate::protocol::time::{SessionTtl, WallTime};

/// The holder's share of a TTL of 15 s.
const VALID: Duration = Duration::from_millis(14_250);

struct Dice(fastrand::Rng);

impl Rng for Dice {
    fn id(&mut self) -> u128 {
        self.0.u128(..)
    }

    fn fraction(&mut self) -> f64 {
        self.0.f64()
    }
}

fn at(milliseconds: u64) -> Moment {
    Moment::since_boot(Duration::from_millis(milliseconds))
}

/// A core and the effects that nobody executed yet.
struct Rig {
    core: Core,
    now: Moment,
    /// Whether nothing needs the session. Otherwise a lease does that the core does not have.
    is_idle: bool,
    dice: Dice,
    effects: VecDeque<Effect>,
    last_call: u64,
}

impl Rig {
    fn new() -> Self {
        let pod = PodRef {
            name: "a".into(),
            uid: "u".into(),
            node: None,
        };
        let session = SessionConfig {
            pod,
            ttl: SessionTtl::clamped(15),
            idle_after: Duration::from_secs(600),
        };
        Self {
            core: Core::new(CoreConfig {
                session,
                token_floor: 0,
                acquire: AcquireConfig {
                    takes_over: true,
                    max_leases: 100,
                    max_waiting: 10,
                },
            }),
            now: at(1_000),
            is_idle: false,
            dice: Dice(fastrand::Rng::with_seed(7)),
            effects: VecDeque::new(),
            last_call: 0,
        }
    }

    /// Returns a core with a session that was created at once.
    fn with_session() -> Self {
        Self::with_session_at(10)
    }

    /// The same, at this revision of the store.
    fn with_session_at(listed: u64) -> Self {
        let mut rig = Self::new();
        let before = rig.core.seen_at_send();
        rig.with(|core, cx| core.observe_list(cx, before, Revision(listed)).unwrap());
        rig.need(Some(Revision(listed)));
        let (op, session) = rig.created();
        rig.answer(op, written(session, listed + 1));
        rig.effects.clear();
        rig
    }

    fn feed(&mut self, input: Input) {
        self.with(|core, cx| core.handle(cx, input));
    }

    /// Runs a step, and takes its effects. Afterwards the core waits for a call or a timer, if anything
    /// waits for it.
    fn with<T>(&mut self, step: impl FnOnce(&mut Core, &mut Cx) -> T) -> T {
        let mut cx = Cx {
            now: self.now,
            wall: WallTime(0),
            rng: &mut self.dice,
        };
        let result = step(&mut self.core, &mut cx);
        self.core.settle(&mut cx);
        if !self.is_idle {
            self.core.idle_since = None;
        }
        while let Some(effect) = self.core.poll_effect() {
            self.effects.push_back(effect);
        }
        assert!(!self.core.out.has_second_call(), "a machine has two calls");
        let waits = !self.core.ending.is_empty()
            || self.core.releases.len() > 0
            || self.core.acquiring.len() > 0;
        assert!(
            !waits || self.core.poll_timeout().is_some(),
            "nothing would happen"
        );
        result
    }

    /// Feeds the timer. Afterwards nothing is due, or the driver would spin.
    fn timer(&mut self) {
        self.feed(Input::Timer);
        let timeout = self.core.poll_timeout();
        assert!(
            timeout.is_none_or(|timeout| timeout > self.now),
            "{timeout:?}"
        );
    }

    /// Nothing needs the session any more.
    fn become_idle(&mut self) {
        self.is_idle = true;
        self.with(|_, _| ());
    }

    /// Lets a claim need the session.
    fn need(&mut self, listed: Option<Revision>) -> Resource {
        self.last_call += 1;
        let resource = Resource::parse(&format!("need-{}", self.last_call)).unwrap();
        let need = resource.clone();
        self.with(|core, cx| {
            let mut leases = core.leases(cx);
            leases.session.need(need, listed, &mut leases.env);
        });
        resource
    }

    fn answer(&mut self, op: OpId, answer: Answer) {
        self.feed(Input::Answer(op, answer));
    }

    fn sleep(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.timer();
    }

    /// Lets time pass until the core does something.
    fn sleep_until_due(&mut self) {
        let before = self.effects.len();
        while self.effects.len() == before {
            let timeout = self.core.poll_timeout();
            self.now = timeout.expect("something must be due").max(self.now);
            self.timer();
        }
    }

    /// Takes the next call out of the effects.
    fn call(&mut self) -> (OpId, StoreCall) {
        let found = self
            .effects
            .iter()
            .position(|effect| matches!(effect, Effect::Call { .. }));
        match found.and_then(|n| self.effects.remove(n)) {
            Some(Effect::Call { op, call, .. }) => (op, call),
            _ => panic!("no call was made: {:?}", self.effects),
        }
    }

    fn created(&mut self) -> (OpId, Session) {
        match self.call() {
            (op, StoreCall::CreateSession(session)) => (op, *session),
            (_, call) => panic!("{call:?}"),
        }
    }

    /// Takes a renewal: the version that it was decided on, and what is to be written.
    fn renewal(&mut self) -> (OpId, Stored<Session>, Session) {
        match self.call() {
            (op, StoreCall::UpdateSession(current, next)) => (op, *current, *next),
            (_, call) => panic!("{call:?}"),
        }
    }

    fn read(&mut self) -> OpId {
        match self.call() {
            (op, StoreCall::GetSession(_)) => op,
            (_, call) => panic!("{call:?}"),
        }
    }

    fn calls(&self) -> usize {
        let calls = self.effects.iter();
        calls
            .filter(|effect| matches!(effect, Effect::Call { .. }))
            .count()
    }

    fn is_ready(&self, need: &Resource) -> bool {
        let mut answered = self.core.session.needs.answered.iter();
        answered.any(|(resource, _)| resource == need)
    }

    fn reply(&mut self, need: &Resource) -> Result<SessionId, AcquireError> {
        let answered = &self.core.session.needs.answered;
        let found = answered.iter().find(|(resource, _)| resource == need);
        let (_, session) = found.expect("there is no answer yet").clone();
        session.map(|()| self.core.live().unwrap().id().clone())
    }

    fn lost(&self) -> Option<Loss> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Report(Report::SessionLost(_, loss, _)) => Some(*loss),
            _ => None,
        })
    }

    fn valid_until(&self) -> Moment {
        self.core
            .live()
            .expect("a session must be live")
            .valid_until()
    }

    fn watch(&mut self) -> Option<WatchCommand> {
        let is_it = |effect: &Effect| matches!(effect, Effect::Watch(_));
        let found = self.effects.iter().position(is_it)?;
        match self.effects.remove(found) {
            Some(Effect::Watch(command)) => Some(command),
            _ => None,
        }
    }
}

fn stored(session: Session, version: u64) -> Stored<Session> {
    Stored {
        value: session,
        version: Revision(version),
        original: Original::new(()),
    }
}

fn written(session: Session, version: u64) -> Answer {
    Answer::Session(Some(Box::new(stored(session, version))))
}

fn page(revision: u64) -> Answer {
    Answer::Page(Box::new(Page {
        items: Vec::new(),
        revision: Revision(revision),
        next: None,
        unreadable: Vec::new(),
    }))
}

fn unavailable() -> Answer {
    Answer::Failed(StoreError::Unavailable("away".into()))
}

fn unclear() -> Answer {
    Answer::Failed(StoreError::Ambiguous("no answer".into()))
}

fn revoked(session: &Session, reason: RevokeReason) -> Session {
    let revocation = Revocation {
        at: WallTime(0),
        by: "operator".into(),
        reason,
    };
    session.revoked(revocation).unwrap()
}
