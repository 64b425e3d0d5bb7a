//! The apps of a pod: each asks for its lock, believes in its lease, ends it, or hangs up.

use std::collections::BTreeMap;

use super::node::{App, Node, Phase, Received, resource};
use super::rules::{Bug, Rules};
use super::*;
use crate::agent::api::{AcquireRequest, Acquired, LeaseError, LeaseView, Life};
use crate::agent::core::answers;
use crate::agent::core::effect::CallId;
use crate::agent::core::leases::EndedBy;

/// An app's own TTL: longer than any run.
const APP_TTL: Duration = Duration::from_secs(100_000);

impl Node {
    pub(super) fn believes(&self, lock: usize, now: Duration) -> bool {
        let until = self.apps[lock].believes_until;
        until.is_some_and(|until| self.clock.at(now) < until)
    }

    pub(super) fn has_forgotten(&self, now: Duration) -> bool {
        let now = self.clock.at(now);
        let passed =
            |app: &App| app.has_ended || app.believes_until.is_some_and(|until| until <= now);
        self.apps.iter().any(passed)
    }

    /// Forgets beliefs that have passed.
    pub(super) fn forget(&mut self, now: Duration) {
        let now = self.clock.at(now);
        for app in &mut self.apps {
            app.has_ended = app.believes_until.take_if(|until| *until <= now).is_some();
        }
    }

    pub(super) fn can_ask(&self, lock: usize, now: Duration) -> bool {
        let app = &self.apps[lock];
        let is_idle = matches!(app.phase, Phase::Idle) && !self.believes(lock, now);
        self.process.is_some() && !self.is_paused && is_idle && app.tries > 0
    }

    pub(super) fn ask(&mut self, lock: usize, now: Duration, rules: &Rules) -> Vec<Received> {
        let local = self.clock.at(now);
        let Some(process) = &mut self.process else {
            return Vec::new();
        };
        process.last_call += 1;
        let call = CallId(process.last_call);
        let request = AcquireRequest {
            resource: resource(lock),
            owner: "o".into(),
            life: Life::Ttl(APP_TTL),
            metadata: BTreeMap::new(),
            wait: if rules.waits {
                Duration::MAX
            } else {
                Duration::ZERO
            },
            preferred: false,
            keep: rules.keep,
            request_id: None,
        };
        self.apps[lock].tries -= 1;
        self.apps[lock].has_ended = false;
        self.apps[lock].phase = Phase::Asking(call, local);
        self.step(now, rules, |core, cx| {
            core.handle(cx, Input::Acquire(call, Box::new(request), local));
        })
    }

    pub(super) fn hang_up(&mut self, lock: usize, now: Duration, rules: &Rules) -> Vec<Received> {
        let Phase::Asking(call, _) = self.apps[lock].phase else {
            return Vec::new();
        };
        self.apps[lock].phase = Phase::Idle;
        self.apps[lock].has_ended = true;
        self.step(now, rules, |core, cx| core.handle(cx, Input::HangUp(call)))
    }

    /// An app ends its lease. A running agent receives that at once.
    pub(super) fn end(&mut self, lock: usize, now: Duration, rules: &Rules) -> Vec<Received> {
        let app = &mut self.apps[lock];
        app.believes_until = None;
        app.has_ended = true;
        let Phase::Holding(lease) = std::mem::replace(&mut app.phase, Phase::Idle) else {
            return Vec::new();
        };
        self.step(now, rules, |core, cx| {
            core.leases(cx).end(&lease, EndedBy::App, CallId(0));
        })
    }

    pub(super) fn renew(
        &mut self,
        lock: usize,
        now: Duration,
        rules: &Rules,
        received: &mut Vec<Received>,
    ) {
        let Phase::Holding(lease) = self.apps[lock].phase.clone() else {
            return;
        };
        let local = self.clock.at(now);
        let renew = |core: &mut Core, cx: &mut Cx| {
            answers::renew(&mut core.leases(cx), &lease, None, local)
        };
        match self.core_step(now, rules, renew, received) {
            Some(Ok(view)) => self.believe(lock, &view, local, received),
            None | Some(Err(LeaseError::Resuming)) => {}
            Some(Err(LeaseError::Unknown)) => {
                received.push(Received::Flaw("a lease is unknown that its app was given"));
            }
            // An app that has not renewed yet believes in the lease until its last answer's validity ends.
            Some(Err(_)) => self.apps[lock].phase = Phase::Idle,
        }
    }

    pub(super) fn replied(
        &mut self,
        call: CallId,
        outcome: Result<Acquired, AcquireError>,
        now: Duration,
        rules: &Rules,
        received: &mut Vec<Received>,
    ) {
        let asks = |app: &App| matches!(app.phase, Phase::Asking(asked, _) if asked == call);
        let Some(lock) = self.apps.iter().position(asks) else {
            return received.push(Received::Flaw("a request is answered twice"));
        };
        let Phase::Asking(_, asked) = self.apps[lock].phase else {
            return;
        };
        let lease = match outcome {
            Ok(Acquired::Granted { lease, .. }) => lease,
            refused => {
                self.apps[lock].phase = Phase::Idle;
                self.apps[lock].has_ended = true;
                if rules.waits && matches!(refused, Ok(Acquired::Held { .. })) {
                    received.push(Received::Flaw(
                        "a caller that waits without a limit is refused",
                    ));
                }
                return;
            }
        };
        let counts_from = match rules.bug {
            Some(Bug::AppCountsFromAnswer) => self.clock.at(now),
            _ => asked,
        };
        received.push(Received::Lease(lock, lease.token));
        self.believe(lock, &lease, counts_from, received);
        self.apps[lock].phase = Phase::Holding(lease.lease);
    }

    fn believe(
        &mut self,
        lock: usize,
        lease: &LeaseView,
        from: Moment,
        received: &mut Vec<Received>,
    ) {
        if lease.valid_for.is_zero() {
            received.push(Received::Flaw("a lease is over when it is answered"));
        }
        let until = Some(from.after(lease.valid_for));
        let app = &mut self.apps[lock];
        app.believes_until = app.believes_until.max(until);
    }
}
