//! Random worlds without a runtime: cores and their apps on one store, with late and lost messages, cut
//! and slow networks, crashes, pauses, restarts with the state file and without it, compacted watches,
//! and clocks of different rates.
//!
//! A world is a queue of events in virtual time. `tests/sim` has more faults and the driver; here a
//! world takes milliseconds, and a violation is detected in the step that causes it.

mod app;
mod network;
mod pod;
mod scenario;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::store::Store;
use super::*;
use crate::agent::core::effect::CallId;
use crate::protocol::token::{LEASES_PER_GRANT, Token};
use app::App;
use pod::Pod;
use scenario::Fault;

/// A world with more events does not end.
const EVENTS_MAX: u64 = 2_000_000;

/// Something that happens in a world. The number is that of a pod, or of an app.
enum Event {
    /// A call arrives at the store. Its answer follows so much later, if it does.
    Call(usize, u64, OpId, StoreCall, Option<Duration>),
    /// An input arrives at a process.
    Input(usize, u64, Input),
    /// A process' timer is due.
    Timer(usize, u64),
    /// An app is answered, by this process of its pod.
    Reply(usize, u64, CallId, Reply),
    /// An app does something, unless it is to do so at another time since.
    Act(usize, u64),
    Kill(usize),
    Start(usize),
}

/// What an app may believe.
struct Belief {
    app: usize,
    resource: Resource,
    token: Token,
    until: Duration,
}

struct World {
    rng: fastrand::Rng,
    now: Duration,
    /// Until when there are faults and new requests.
    faults_until: Duration,
    /// The kinds of them.
    faults: Vec<Fault>,
    /// How soon apps release their leases: one time in so many, instead of a renewal.
    releases_one_in: u32,
    queue: BTreeMap<(Duration, u64), Event>,
    last_event: u64,
    store: Store,
    pods: Vec<Pod>,
    apps: Vec<App>,
    beliefs: Vec<Belief>,
    /// The largest token that an app received for each lock.
    received: BTreeMap<Resource, Token>,
    /// The last request to any process.
    last_call: u64,
    counts: BTreeMap<String, usize>,
    /// The first flaw.
    flaw: Option<String>,
    /// What happened, in words.
    lines: Option<Vec<String>>,
}

impl World {
    fn schedule(&mut self, delay: Duration, event: Event) {
        self.schedule_at(self.now + delay, event);
    }

    fn schedule_at(&mut self, at: Duration, event: Event) {
        self.last_event += 1;
        self.queue.insert((at, self.last_event), event);
    }

    fn trace(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:9.3} {}", now.as_secs_f64(), what()));
        }
    }

    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    fn flaw(&mut self, flaw: String) {
        self.trace(|| format!("FLAW: {flaw}"));
        self.flaw.get_or_insert(flaw);
    }

    fn is_faulty(&self) -> bool {
        self.now < self.faults_until
    }

    /// Returns a random time up to a bound.
    fn up_to(&mut self, bound: Duration) -> Duration {
        bound.mul_f64(self.rng.f64())
    }

    fn one_in(&mut self, many: u32) -> bool {
        self.rng.u32(..many) == 0
    }

    /// Lets everything happen until a moment, or a flaw.
    fn run_until(&mut self, end: Duration) {
        while self.flaw.is_none()
            && let Some((&(at, number), _)) = self.queue.first_key_value()
            && at <= end
        {
            self.now = at;
            if self.last_event > EVENTS_MAX {
                self.flaw("it does not end".into());
            }
            if let Some(event) = self.queue.remove(&(at, number)) {
                self.happen(event);
            }
        }
        self.now = self.now.max(end);
    }

    fn happen(&mut self, event: Event) {
        if let Some(pod) = self.runs_in(&event)
            && self.now < self.pods[pod].paused_until
        {
            return self.schedule_at(self.pods[pod].paused_until, event);
        }
        match event {
            Event::Call(pod, process, op, call, answer_after) => {
                self.call(pod, process, op, call, answer_after);
            }
            Event::Input(pod, process, input) => self.input(pod, process, input),
            Event::Timer(pod, process) => self.timer(pod, process),
            Event::Reply(app, process, call, reply) => self.replied(app, process, call, reply),
            Event::Act(app, turn) if self.apps[app].turn == turn => self.act(app),
            Event::Act(..) => {}
            Event::Kill(pod) => self.kill(pod),
            Event::Start(pod) => self.start(pod),
        }
    }

    /// Returns the pod in which a process or an app runs at an event.
    fn runs_in(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Call(..) | Event::Kill(_) => None,
            Event::Input(pod, ..) | Event::Timer(pod, _) | Event::Start(pod) => Some(*pod),
            Event::Reply(app, ..) | Event::Act(app, _) => Some(self.apps[*app].pod()),
        }
    }

    /// An app may believe until then. No other app may.
    fn believe(&mut self, belief: Belief, is_new: bool) {
        let now = self.now;
        let last = self.received.get(&belief.resource).copied();
        let last = last.unwrap_or_default();
        if is_new && belief.token <= last {
            self.flaw(format!("token {} follows {last}", belief.token));
        }
        self.received
            .insert(belief.resource.clone(), last.max(belief.token));
        let of_it = |other: &&Belief| other.resource == belief.resource && now < other.until;
        let mut others = self.beliefs.iter().filter(of_it);
        if let Some(other) = others.find(|other| other.app != belief.app) {
            let flaw = format!(
                "apps {} and {} believe in {} with tokens {} and {}",
                other.app, belief.app, belief.resource, other.token, belief.token
            );
            self.flaw(flaw);
        }
        self.disbelieve(belief.app);
        self.beliefs.push(belief);
    }

    /// Checks that a grant that has ended serves no lease that an app believes in.
    fn check_end(&mut self, before: &Lock, after: &Lock) {
        let Some(grant) = &before.grant else { return };
        if after.names_grant(&grant.id) {
            return;
        }
        let (now, base) = (self.now, before.token.get());
        let mut beliefs = self.beliefs.iter();
        let is_of_it = |belief: &&Belief| {
            let tokens = base..base + LEASES_PER_GRANT;
            belief.resource == before.resource && tokens.contains(&belief.token.get())
        };
        if let Some(belief) = beliefs.find(|belief| is_of_it(belief) && now < belief.until) {
            let (app, token) = (belief.app, belief.token);
            self.flaw(format!(
                "the grant of token {token} ends while app {app} believes in it"
            ));
        }
    }

    /// An app believes in nothing any more.
    fn disbelieve(&mut self, app: usize) {
        self.beliefs.retain(|belief| belief.app != app);
    }
}
