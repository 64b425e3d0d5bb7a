//! The apps of a world: each asks for a lock, renews its lease, releases it or falls silent, and hangs
//! up now and then. It believes in its lease by its pod's clock, whatever becomes of the agent.

use super::*;
use crate::agent::api::{AcquireRequest, Acquired, LeaseError, LeaseView, Life};
use crate::agent::core::answers;
use crate::agent::core::leases::EndedBy;
use crate::protocol::ids::LeaseId;

/// The longest pause of an app.
const PAUSE: Duration = Duration::from_secs(6);
/// How long an answer may take: a request waits for 60 s at most, and its pod is paused now and then.
const ANSWERED_WITHIN: Duration = Duration::from_secs(180);

pub(super) struct App {
    pod: usize,
    phase: Phase,
    /// The request that it sends again.
    repeats: Option<AcquireRequest>,
    /// Counts the times for which its next action was planned.
    pub(super) turn: u64,
}

#[derive(Clone)]
enum Phase {
    Idle,
    /// It has sent this request at this moment, and may hang up.
    Asking(CallId, Moment, Box<AcquireRequest>),
    /// It believes in a lease until this moment.
    Holding(LeaseId, Moment),
    /// It believes in a lease, and says nothing any more.
    Silent(Moment),
}

impl App {
    pub(super) const fn of(pod: usize) -> Self {
        Self {
            pod,
            phase: Phase::Idle,
            repeats: None,
            turn: 0,
        }
    }

    pub(super) const fn pod(&self) -> usize {
        self.pod
    }
}

impl World {
    pub(super) fn act(&mut self, app: usize) {
        let pod = self.apps[app].pod;
        let now = self.pods[pod].local(self.now);
        match self.apps[app].phase.clone() {
            Phase::Idle if self.is_faulty() => self.ask(app),
            Phase::Idle => {}
            Phase::Asking(_, sent, _) if now.since(sent) >= ANSWERED_WITHIN => {
                self.flaw(format!("app {app} was not answered"));
            }
            Phase::Asking(call, ..) => {
                self.trace(|| format!("app {app} hangs up"));
                self.unanswered(app);
                self.step(pod, |core, cx| core.handle(cx, Input::HangUp(call)));
            }
            Phase::Holding(_, until) | Phase::Silent(until) if now >= until => self.stop(app),
            Phase::Silent(_) => self.act_later(app),
            Phase::Holding(lease, _) if !self.is_faulty() || self.one_in(self.releases_one_in) => {
                self.release(app, &lease);
            }
            Phase::Holding(_, until) if self.one_in(20) => {
                self.trace(|| format!("app {app} falls silent"));
                self.count("silent app");
                self.apps[app].phase = Phase::Silent(until);
                self.act_later(app);
            }
            Phase::Holding(lease, _) => self.renew(app, &lease),
        }
    }

    fn act_later(&mut self, app: usize) {
        let pause = self.up_to(PAUSE);
        self.act_after(app, pause);
    }

    /// Plans what an app does next.
    pub(super) fn act_after(&mut self, app: usize, pause: Duration) {
        self.apps[app].turn += 1;
        let turn = self.apps[app].turn;
        self.schedule(pause, Event::Act(app, turn));
    }

    fn ask(&mut self, app: usize) {
        let pod = self.apps[app].pod;
        let now = self.pods[pod].local(self.now);
        if self.pods[pod].process.is_none() {
            return self.act_later(app);
        }
        self.last_call += 1;
        let call = CallId(self.last_call);
        let request = self.apps[app].repeats.take();
        let request = request.unwrap_or_else(|| self.request(app, call));
        if let Some(process) = &mut self.pods[pod].process {
            process.asked.insert(call, app);
        }
        self.trace(|| {
            let (resource, wait, id) = (&request.resource, request.wait, &request.request_id);
            format!("app {app} in pod {pod} asks for {resource}, {wait:?}, {id:?}")
        });
        self.apps[app].phase = Phase::Asking(call, now, Box::new(request.clone()));
        self.step(pod, |core, cx| {
            core.handle(cx, Input::Acquire(call, Box::new(request), now));
        });
        let hangs_up = if self.is_faulty() && self.one_in(5) {
            self.up_to(PAUSE * 2)
        } else {
            ANSWERED_WITHIN
        };
        self.act_after(app, hangs_up);
    }

    fn request(&mut self, app: usize, call: CallId) -> AcquireRequest {
        let resource = format!("lock-{}", self.rng.u8(..2));
        let keep = if self.one_in(4) {
            Duration::from_secs(20)
        } else {
            Duration::ZERO
        };
        let wait = if self.one_in(3) {
            Duration::ZERO
        } else {
            self.up_to(Duration::from_secs(60))
        };
        let lasts = self.up_to(Duration::from_secs(60)) + Duration::from_secs(1);
        let life = if self.one_in(4) {
            Life::Connection { max_hold: lasts }
        } else {
            Life::Ttl(lasts)
        };
        AcquireRequest {
            resource: Resource::parse(&resource).unwrap(),
            owner: format!("app-{app}").into(),
            life,
            metadata: BTreeMap::new(),
            wait,
            preferred: false,
            keep,
            request_id: self.one_in(3).then(|| format!("{call:?}")),
        }
    }

    /// A process answers an app. Half of the answers of a process that died meanwhile are lost.
    pub(super) fn replied(&mut self, app: usize, process: u64, call: CallId, reply: Reply) {
        let Reply::Acquired(outcome) = reply else {
            return;
        };
        let pod = self.apps[app].pod;
        let is_dead = self.pods[pod].process.is_none() || self.pods[pod].number != process;
        let sent = match &self.apps[app].phase {
            Phase::Asking(asked, sent, _) if *asked == call => Some(*sent),
            _ => None,
        };
        match (*outcome, sent) {
            (_, Some(_)) if is_dead && self.rng.bool() => self.unanswered(app),
            (Ok(Acquired::Granted { lease, replayed }), Some(sent)) => {
                self.count(if replayed { "replayed" } else { "granted" });
                self.receive(app, lease, sent, !replayed);
                self.act_later(app);
            }
            (Ok(Acquired::Granted { lease, replayed }), None) if !replayed && !is_dead => {
                let undelivered = Input::Undelivered(lease.lease);
                self.count("undelivered");
                self.step(pod, |core, cx| core.handle(cx, undelivered));
            }
            (_, Some(_)) => {
                self.count("not granted");
                self.apps[app].phase = Phase::Idle;
                self.act_later(app);
            }
            (_, None) => {}
        }
    }

    /// The process died with the request, or the app hung up. It repeats a request with an id.
    pub(super) fn unanswered(&mut self, app: usize) {
        let before = std::mem::replace(&mut self.apps[app].phase, Phase::Idle);
        if let Phase::Asking(_, _, request) = before
            && request.request_id.is_some()
        {
            self.apps[app].repeats = Some(*request);
        }
        self.act_later(app);
    }

    /// An app receives a lease, or learns how long it may believe in it.
    fn receive(&mut self, app: usize, lease: LeaseView, sent: Moment, is_new: bool) {
        let pod = self.apps[app].pod;
        let until = sent.after(lease.valid_for);
        self.trace(|| {
            let (id, token) = (&lease.lease, lease.token);
            format!(
                "app {app} has {} by {id}, token {token}, for {:?}",
                lease.resource, lease.valid_for
            )
        });
        self.apps[app].phase = Phase::Holding(lease.lease, until);
        if self.pods[pod].local(self.now) < until {
            let belief = Belief {
                app,
                resource: lease.resource,
                token: lease.token,
                until: self.pods[pod].passed(until),
            };
            self.believe(belief, is_new);
        }
    }

    fn renew(&mut self, app: usize, lease: &LeaseId) {
        let pod = self.apps[app].pod;
        let now = self.pods[pod].local(self.now);
        let renewed = self.step(pod, |core, cx| {
            answers::renew(&mut core.leases(cx), lease, None, now)
        });
        match renewed {
            Some(Ok(view)) => {
                self.receive(app, view, now, false);
                self.act_later(app);
            }
            None | Some(Err(LeaseError::Resuming)) => self.act_later(app),
            Some(Err(LeaseError::Unknown)) if self.pods[pod].has_file() => {
                self.flaw(format!("app {app}'s lease is unknown after a restart"));
            }
            Some(Err(error)) => {
                self.trace(|| format!("app {app} is told: {error:?}"));
                self.count(&format!("received {error:?}"));
                self.stop(app);
            }
        }
    }

    fn release(&mut self, app: usize, lease: &LeaseId) {
        let pod = self.apps[app].pod;
        self.trace(|| format!("app {app} releases"));
        self.disbelieve(app);
        self.apps[app].phase = Phase::Idle;
        self.step(pod, |core, cx| {
            core.leases(cx).end(lease, EndedBy::App, CallId(0));
        });
        self.act_later(app);
    }

    /// An app believes in its lease no longer.
    fn stop(&mut self, app: usize) {
        self.disbelieve(app);
        self.apps[app].phase = Phase::Idle;
        self.act_later(app);
    }
}
