//! An app: it acquires locks from its sidecar, writes with their tokens, and acts until its
//! deadline on its own machine's clock.

mod calls;
mod stream;

use std::time::Duration;

use fastrand::Rng;
use leasehold::agent::{AcquireRequest, Acquired, LeaseView, Life};
use leasehold::protocol::ids::{LeaseId, OwnerId, Resource};
use leasehold::protocol::time::Moment;
use leasehold::protocol::token::Token;

use crate::history::Op;
use crate::invariants::Promise;
use crate::pod::Pod;
use crate::recorder::Invocation;
use crate::setup::Control;
use crate::world::World;

/// A lease that an app holds or held.
#[derive(Clone, Debug)]
struct Held {
    resource: Resource,
    lease: LeaseId,
    token: Token,
    /// The end of its belief, on its own clock.
    until: Moment,
    /// The sidecar process that granted it.
    told_by: u64,
    /// Its pod's memory before the request.
    memory: u64,
}

/// The time of an app's request.
#[derive(Clone)]
struct Asks {
    /// On its own clock.
    sent: Moment,
    asked: Duration,
    /// Its pod's memory at that time.
    memory: u64,
    request: Invocation,
}

/// The result of a call for an app.
enum Answer<T> {
    /// The sidecar's answer.
    Said(T),
    /// No sidecar answered.
    Nothing,
}

/// An app.
pub(crate) struct App {
    world: World,
    pod: Pod,
    name: String,
    random: Rng,
}

impl App {
    pub(crate) fn new(pod: &Pod, number: usize) -> Self {
        Self {
            world: pod.world().clone(),
            name: format!("{}/{number}", pod.name()),
            random: pod.fork(),
            pod: pod.clone(),
        }
    }

    /// Acquires and uses locks until all faults are over.
    pub(crate) async fn work(mut self) {
        let ttl = self.ttl();
        while !self.world.is_healed() {
            self.pause(ttl).await;
            let wait = match self.random.u8(..3) {
                0 => Duration::ZERO,
                _ => self.up_to(ttl * 3),
            };
            let resource = self.some_resource();
            if self.random.u8(..6) == 0 {
                self.hold_by_connection(resource).await;
                continue;
            }
            if let Some(held) = self.acquire(resource, wait).await {
                self.hold(held).await;
            }
        }
    }

    /// Acquires each lock once more, and records how long that took.
    pub(crate) async fn have_each_once(mut self, at_most: Duration) {
        for resource in self.world.setup().resources.clone() {
            let began = self.world.now();
            let Some(held) = self.have(&resource, at_most).await else {
                return;
            };
            self.release(held).await;
            let took = self.world.since(began);
            self.world.took("a wait", took);
            if took > at_most {
                let late = format!("{} had {resource} after {took:?}", self.name);
                return self.world.judge(&self.name.clone(), Err(late));
            }
        }
    }

    /// Acquires a lock that no other app keeps. A longer wait is a flaw.
    async fn have(&mut self, resource: &Resource, at_most: Duration) -> Option<Held> {
        let began = self.world.now();
        loop {
            let left = at_most.saturating_sub(self.world.since(began));
            if left.is_zero() {
                let waited = format!("{} waited for {resource} in vain", self.name);
                self.world.judge(&self.name, Err(waited));
                return None;
            }
            if let Some(held) = self.acquire(resource.clone(), left).await {
                return Some(held);
            }
            self.pause(Duration::from_millis(500)).await;
        }
    }

    /// Acquires a lock whose grant an administrator then ends. The app must be notified of that
    /// although its session is valid.
    pub(crate) async fn learns_of_its_end(
        mut self,
        resource: &Resource,
        at_most: Duration,
        heard_within: Duration,
        end: impl FnOnce(),
    ) {
        let Some(mut held) = self.have(resource, at_most).await else {
            return;
        };
        end();
        let ended = self.world.now();
        loop {
            self.pause(self.ttl() / 10).await;
            let until = held.until;
            let Some(still) = self.renew(held).await else {
                return self.world.count("end by a person heard of");
            };
            if still.until > until && self.world.since(ended) > heard_within {
                let deaf = format!("{} never receives that {resource} was ended", self.name);
                return self.world.judge(&self.name, Err(deaf));
            }
            held = still;
        }
    }

    async fn hold(&mut self, mut held: Held) {
        let ttl = self.ttl();
        // A few TTLs at most; occasionally up to eight.
        let most = if self.random.u8(..6) == 0 { 48 } else { 12 };
        for _ in 0..self.random.u32(..most) {
            if self.world.is_healed() {
                break;
            }
            self.pause(ttl / 3).await;
            match self.random.u8(..10) {
                0..5 => {
                    let Some(renewed) = self.renew(held).await else {
                        return;
                    };
                    held = renewed;
                }
                5..9 => self.write(&held),
                // No action for a while.
                _ => self.pause(ttl).await,
            }
        }
        if self.random.u8(..5) == 0 {
            // The app becomes silent, and believes until its deadline.
            self.world.note(&self.name, "falls silent");
            self.world.count("silent app");
            return;
        }
        self.release(held).await;
    }

    /// Sends a write to the fenced resource if it believes now. The write may arrive long after the
    /// deadline.
    fn write(&mut self, held: &Held) {
        if self.pod.now() >= held.until {
            return;
        }
        let delay = match self.random.u8(..10) {
            0 => self.up_to(self.ttl() * 2),
            _ => self.up_to(Duration::from_millis(50)),
        };
        let (world, name, held) = (self.world.clone(), self.name.clone(), held.clone());
        let (to, lease, token) = (&held.resource, &held.lease, held.token);
        let now = world.now();
        let asked = (world.records().recorder).writes(now, &name, to, lease, token);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            world.write(&name, &held.resource, &held.lease, held.token, &asked);
        });
    }

    fn asks(&self, op: Op) -> Asks {
        let now = self.world.now();
        Asks {
            sent: self.pod.now(),
            asked: now,
            memory: self.pod.memory(),
            request: self.world.records().recorder.asks(now, &self.name, op),
        }
    }

    /// Records an answer that confirms a lease of this app.
    fn believe(&self, view: &LeaseView, asks: Asks, is_new: bool) -> Held {
        let Asks {
            sent,
            asked,
            memory,
            request,
        } = asks;
        let valid_for = match self.world.setup().control {
            Control::Apps => view.valid_for.mul_f64(1.5),
            _ => view.valid_for,
        };
        let until = sent.after(valid_for);
        self.world.promise(&Promise {
            app: self.name.clone(),
            resource: view.resource.clone(),
            lease: view.lease.clone(),
            token: view.token,
            asked,
            request,
            at: self.world.now(),
            until: self.pod.clock().virtual_time_of(until),
            gain: self.pod.clock().gain(),
            is_new,
        });
        Held {
            resource: view.resource.clone(),
            lease: view.lease.clone(),
            token: view.token,
            until,
            told_by: self.pod.started(),
            memory,
        }
    }

    fn request(&mut self, resource: Resource, wait: Duration) -> AcquireRequest {
        let ttl = self.ttl();
        let keep = if self.random.u8(..4) == 0 {
            self.up_to(ttl * 2)
        } else {
            Duration::ZERO
        };
        AcquireRequest {
            resource,
            owner: OwnerId::from(&*self.name),
            life: Life::Ttl(ttl.mul_f64(0.3 + 3.0 * self.random.f64())),
            metadata: std::collections::BTreeMap::new(),
            wait,
            preferred: false,
            keep,
            request_id: self.names_request(),
        }
    }

    /// Half of all requests have a `requestId` and are repeated if no answer arrives.
    fn names_request(&mut self) -> Option<String> {
        let number = self.random.u32(..);
        self.random.bool().then(|| format!("request-{number}"))
    }

    fn granted(outcome: Acquired) -> Option<(LeaseView, bool)> {
        match outcome {
            Acquired::Granted { lease, replayed } => Some((lease, replayed)),
            Acquired::Held { .. } => None,
        }
    }

    fn some_resource(&mut self) -> Resource {
        let resources = &self.world.setup().resources;
        resources[self.random.usize(..resources.len())].clone()
    }

    fn ttl(&self) -> Duration {
        self.world.setup().ttl.get()
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        longest.mul_f64(self.random.f64())
    }

    async fn pause(&mut self, longest: Duration) {
        let pause = self.up_to(longest);
        tokio::time::sleep(pause).await;
    }
}
