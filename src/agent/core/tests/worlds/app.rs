//! The apps of a world: each asks for a lock, renews its lease, releases it or falls silent, and hangs
//! up now and then. It believes in its lease by its pod's clock, whatever becomes of the agent.

use super::*;
use crate::agent::core::answers;
use crate::agent::core::leases::EndedBy;
use crate::agent::{AcquireRequest, Acquired, LeaseError, LeaseView, Life};
use crate::protocol::ids::LeaseId;

/// The longest pause of an app.
const PAUSE: Duration = Duration::from_secs(6);

pub(super) struct App {
    pod: usize,
    phase: Phase,
    /// Counts the times for which its next deed was planned.
    pub(super) turn: u64,
}

#[derive(Clone)]
enum Phase {
    Idle,
    /// It has sent a request at this moment, and hangs up after some time.
    Asking(CallId, Moment),
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
            turn: 0,
        }
    }

    pub(super) const fn asks(&self) -> bool {
        matches!(self.phase, Phase::Asking(..))
    }
}

impl World {
    pub(super) fn act(&mut self, app: usize) {
        let pod = self.apps[app].pod;
        let now = self.pods[pod].local(self.now);
        match self.apps[app].phase.clone() {
            Phase::Idle if self.is_troubled() => self.ask(app),
            Phase::Idle => {}
            Phase::Asking(call, _) => {
                self.note(|| format!("app {app} hangs up"));
                self.apps[app].phase = Phase::Idle;
                self.step(pod, |core, cx| core.handle(cx, Input::HangUp(call)));
                self.act_later(app);
            }
            Phase::Holding(_, until) | Phase::Silent(until) if now >= until => self.stop(app),
            Phase::Silent(_) => self.act_later(app),
            Phase::Holding(lease, until) => match self.rng.u8(..10) {
                0 if self.is_troubled() => {
                    self.note(|| format!("app {app} falls silent"));
                    self.count("silent app");
                    self.apps[app].phase = Phase::Silent(until);
                    self.act_later(app);
                }
                1..3 => self.release(app, &lease),
                _ if !self.is_troubled() => self.release(app, &lease),
                _ => self.renew(app, &lease),
            },
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
        let request = AcquireRequest {
            resource: Resource::parse(&resource).unwrap(),
            owner: format!("app-{app}").into(),
            life,
            metadata: BTreeMap::new(),
            wait,
            preferred: false,
            keep,
            request_id: None,
        };
        let Some(process) = &mut self.pods[pod].process else {
            return self.act_later(app);
        };
        process.state.last_call += 1;
        let call = CallId(process.state.last_call);
        process.asked.insert(call, app);
        self.note(|| format!("app {app} in pod {pod} asks for {resource}, {wait:?}"));
        self.apps[app].phase = Phase::Asking(call, now);
        self.step(pod, |core, cx| {
            core.handle(cx, Input::Acquire(call, Box::new(request), now));
        });
        let patience = if self.is_troubled() && self.one_in(5) {
            PAUSE
        } else {
            Duration::from_secs(100)
        };
        let hangs_up = self.up_to(patience) + patience;
        self.act_after(app, hangs_up);
    }

    pub(super) fn replied(&mut self, app: usize, call: CallId, reply: Reply) {
        let Reply::Acquired(outcome) = reply else {
            return;
        };
        let asked = match self.apps[app].phase {
            Phase::Asking(asked, sent) if asked == call => Some(sent),
            _ => None,
        };
        match (*outcome, asked) {
            (Ok(Acquired::Granted { lease, .. }), Some(sent)) => {
                self.count("granted");
                self.told(app, lease, sent, true);
                self.act_later(app);
            }
            (Ok(Acquired::Granted { lease, replayed }), None) => {
                assert!(!replayed, "no request has an id");
                let pod = self.apps[app].pod;
                let undelivered = Input::Undelivered(lease.lease);
                self.count("undelivered");
                self.step(pod, |core, cx| core.handle(cx, undelivered));
            }
            (Ok(Acquired::Held { .. }) | Err(_), Some(_)) => {
                self.count("not granted");
                self.apps[app].phase = Phase::Idle;
                self.act_later(app);
            }
            (Ok(Acquired::Held { .. }) | Err(_), None) => {}
        }
    }

    /// The process died with the request.
    pub(super) fn unanswered(&mut self, app: usize) {
        self.apps[app].phase = Phase::Idle;
        self.act_later(app);
    }

    /// An app receives a lease, or a later deadline of it.
    fn told(&mut self, app: usize, lease: LeaseView, sent: Moment, is_new: bool) {
        let pod = self.apps[app].pod;
        let until = sent.after(lease.valid_for);
        self.note(|| {
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
                self.told(app, view, now, false);
                self.act_later(app);
            }
            None | Some(Err(LeaseError::Resuming)) => self.act_later(app),
            Some(Err(LeaseError::Unknown)) if self.pods[pod].has_file() => {
                self.flaw(format!("app {app}'s lease is unknown after a restart"));
            }
            Some(Err(error)) => {
                self.note(|| format!("app {app} is told: {error:?}"));
                self.count(&format!("told {error:?}"));
                self.stop(app);
            }
        }
    }

    fn release(&mut self, app: usize, lease: &LeaseId) {
        let pod = self.apps[app].pod;
        self.note(|| format!("app {app} releases"));
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
