//! An app's calls to its sidecar. Each takes a moment in either direction, and occasionally much
//! longer or forever: the app counts from when it sent the call.

use std::time::Duration;

use leasehold::agent::{AcquireError, AcquireRequest, Acquired, Agent, LeaseError, LeaseView};
use leasehold::protocol::ids::{LeaseId, Resource};
use leasehold::protocol::time::Moment;

use super::{Answer, App, Asks, Held, Invocation, Op};
/// The maximum number of attempts of a request with a `requestId`.
const TRIES: u32 = 3;
/// The timeout of a call that needs no wait.
const PATIENCE: Duration = Duration::from_secs(10);

impl App {
    /// Acquires a lock; `None` without a grant. A request with a `requestId` is repeated if no
    /// answer arrives, and then gets the answer to the first attempt.
    pub(super) async fn acquire(&mut self, resource: Resource, wait: Duration) -> Option<Held> {
        let request = self.request(resource, wait);
        let asks = self.asks(Op::acquire(request.resource.as_str()));
        for tries in 0..TRIES {
            let sent = self.pod.now();
            match self.try_acquire(request.clone()).await {
                Answer::Said(Ok(outcome)) => {
                    let (lease, replayed) = Self::granted(outcome)?;
                    self.world.count("lease");
                    if replayed && tries > 0 {
                        self.world
                            .count("lease told to the repetition of a request");
                    }
                    // The first answer about this lease that this app receives, even if an earlier
                    // process has received one.
                    let asks = Asks { sent, ..asks };
                    return Some(self.believe(&lease, asks, !replayed || tries > 0));
                }
                Answer::Said(Err(error)) => {
                    self.world
                        .note(&self.name, format_args!("has nothing: {error}"));
                    return None;
                }
                Answer::Nothing if request.request_id.is_none() => return None,
                Answer::Nothing => self.pause(Duration::from_millis(500)).await,
            }
        }
        None
    }

    async fn try_acquire(
        &mut self,
        request: AcquireRequest,
    ) -> Answer<Result<Acquired, AcquireError>> {
        let wait = request.wait;
        // A client that disconnects before the answer.
        let hangs_up = if self.random.u8(..10) == 0 {
            self.up_to(wait + Duration::from_millis(20))
        } else {
            wait + Duration::from_secs(30)
        };
        let answer = self
            .ask(hangs_up, move |agent, arrived| async move {
                let acquired = agent.acquire(request, arrived).await;
                let is_late = is_late(&agent, arrived, granted(&acquired));
                (acquired, is_late)
            })
            .await;
        match answer {
            Answer::Said((outcome, is_late)) => {
                self.judge_late(is_late);
                Answer::Said(outcome)
            }
            Answer::Nothing => Answer::Nothing,
        }
    }

    /// Renews; `None` if the lease is over. Without an answer the previous deadline stays.
    pub(super) async fn renew(&mut self, held: Held) -> Option<Held> {
        let asks = self.asks(Op::renew(held.lease.as_str()));
        let lease = held.lease.clone();
        let answer = self
            .ask(PATIENCE, move |agent, arrived| async move {
                let renewed = agent.renew(&lease, None, arrived);
                let is_late = is_late(&agent, arrived, renewed.as_ref().ok());
                (renewed, is_late)
            })
            .await;
        match answer {
            Answer::Said((Ok(view), is_late)) => {
                self.judge_late(is_late);
                self.world.count("lease renewed");
                let renewed = self.believe(&view, asks, false);
                if renewed.told_by > held.told_by {
                    self.world.count("lease went on after a restart");
                }
                let until = renewed.until.max(held.until);
                Some(Held { until, ..renewed })
            }
            Answer::Said((Err(error), _)) => self.lost(held, error),
            Answer::Nothing => Some(held),
        }
    }

    /// Stops acting under the lease, and records that.
    pub(super) async fn release(&mut self, held: Held) {
        let lease = held.lease.clone();
        self.world
            .note(&self.name, format_args!("releases {lease}"));
        let asked = self.stop_believing(&held);
        let answer = self
            .ask(PATIENCE, move |agent, _| async move {
                agent.release(&lease).await
            })
            .await;
        match answer {
            Answer::Said(Ok(_)) => {
                let (now, op) = (self.world.now(), Op::release(held.lease.as_str()));
                (self.world.records().recorder).yes(now, &self.name, &asked, op);
                self.over(&held);
            }
            Answer::Said(Err(error)) => drop(self.lost(held, error)),
            Answer::Nothing => {}
        }
    }

    /// Records that the app is about to release.
    pub(super) fn stop_believing(&self, held: &Held) -> Invocation {
        let (now, mut records) = (self.world.now(), self.world.records());
        records
            .invariants
            .stopped_believing(&held.resource, &held.lease);
        let op = Op::release(held.lease.as_str());
        records.recorder.asks(now, &self.name, op)
    }

    /// Records that the app was notified of a loss.
    pub(super) fn is_lost(&self, lease: &LeaseId) {
        let (now, op) = (self.world.now(), Op::lost(lease.as_str()));
        self.world.records().recorder.note(now, &self.name, op);
    }

    pub(super) fn over(&self, held: &Held) {
        let mut records = self.world.records();
        records.invariants.over(&held.resource, &held.lease);
    }

    fn lost(&self, held: Held, error: LeaseError) -> Option<Held> {
        self.world
            .note(&self.name, format_args!("{}: {error}", held.lease));
        match error {
            LeaseError::Lost(loss) => {
                self.world.count(loss.as_str());
                self.is_lost(&held.lease);
                self.over(&held);
                None
            }
            LeaseError::Released => {
                self.over(&held);
                None
            }
            // The sidecar was restarted, so the previous deadline stays.
            LeaseError::Resuming => Some(held),
            LeaseError::Unknown => {
                self.judge_unknown(&held);
                None
            }
        }
    }

    /// A sidecar that returned this lease knows it while the app holds it; after a restart, if the
    /// lease is in the state file.
    fn judge_unknown(&self, held: &Held) {
        if self.pod.memory() == held.memory && self.pod.now() < held.until {
            let lease = &held.lease;
            let flaw = format!("{} was told of {lease}, and that it is unknown", self.name);
            self.world.judge(&self.name, Err(flaw));
        }
    }

    /// Sends a request, and waits for its answer up to this time.
    async fn ask<T, F>(
        &mut self,
        at_most: Duration,
        call: impl FnOnce(Agent, Moment) -> F + Send + 'static,
    ) -> Answer<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (there, back) = (self.way(), self.way());
        tokio::time::sleep(there).await;
        let Some(sidecar) = self.pod.sidecar() else {
            return Answer::Nothing;
        };
        let served = sidecar.serve(call);
        let answer = tokio::select! {
            biased;
            () = sidecar.crashed.cancelled() => return Answer::Nothing,
            answer = tokio::time::timeout(at_most, served) => answer,
        };
        let Ok(answer) = answer else {
            self.world.count("caller hung up");
            return Answer::Nothing;
        };
        // The answer may be lost.
        let Some(answer) = answer.ok().filter(|_| self.random.u8(..100) > 0) else {
            self.world.count("app heard nothing");
            return Answer::Nothing;
        };
        tokio::time::sleep(back).await;
        Answer::Said(answer)
    }

    fn judge_late(&self, is_late: Option<String>) {
        self.world.judge(&self.name, is_late.map_or(Ok(()), Err));
    }

    /// Returns the delay of a message inside the pod.
    pub(super) fn way(&mut self) -> Duration {
        match self.random.u8(..50) {
            0 => self.up_to(self.ttl()),
            1..5 => self.up_to(Duration::from_millis(100)),
            _ => self.up_to(Duration::from_millis(2)),
        }
    }
}

fn granted(outcome: &Result<Acquired, AcquireError>) -> Option<&LeaseView> {
    match outcome {
        Ok(Acquired::Granted { lease, .. }) => Some(lease),
        _ => None,
    }
}

/// A returned lease has validity left. Returns the violation, if any.
fn is_late(agent: &Agent, arrived: Moment, view: Option<&LeaseView>) -> Option<String> {
    let view = view?;
    let is_late = arrived.after(view.valid_for) <= agent.now();
    is_late.then(|| format!("{} was told when it was over", view.lease))
}
