//! Lets requests pass in the order of their tokens. It knows nothing of HTTP.
//!
//! A token that the fence has not seen is verified with the lock and recorded, on disk, before a request with it
//! passes. From then on smaller tokens are refused. A request passes only after all requests with smaller tokens have
//! ended: those that run longer than a limit are cut, and those of unknown outcome count until they are settled.
//!
//! A known token costs a lookup and no write: the disk already has it, and a crash loses no token that a request
//! passed with.

mod pass;

use std::collections::HashMap;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::guarded::{Admission, End, Guarded};
use super::metrics::Metrics;
use super::refusal::{Code, Refusal};
use crate::clock::Clock;
use crate::protocol::ids::Resource;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;

pub(super) use pass::Pass;

/// Where the largest tokens survive a crash.
#[async_trait]
pub trait Record: Send + Sync + 'static {
    /// Records a token. When this returns, it is on disk.
    ///
    /// # Errors
    /// Why it is unknown whether it is recorded.
    async fn record(&self, resource: &Resource, token: Token) -> Result<(), String>;
}

/// What the lock says about a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It belongs to the current grant.
    Current,
    /// Its lease has ended.
    Stale {
        /// The newest token of the lock.
        latest: Token,
    },
    /// It is larger than all that the lock granted.
    Unknown {
        /// The newest token of the lock.
        latest: Token,
    },
}

/// Verifies tokens with the lock.
#[async_trait]
pub trait Verify: Send + Sync + 'static {
    /// Asks the lock about a token.
    ///
    /// # Errors
    /// Why there is no verdict.
    async fn verify(&self, resource: &Resource, token: Token) -> Result<Verdict, String>;
}

/// The lead of one of several fences.
pub trait Lead: Send + Sync + 'static {
    /// Returns until when no other fence leads.
    fn until(&self) -> Moment;
}

/// The limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a newer token waits for older requests before they are cut.
    pub older_requests: Duration,
    /// How long the service may work on a request after its connection was closed.
    pub settle: Duration,
    /// The maximum number of resources.
    pub resources: usize,
}

/// What the record contains at the start.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The largest token of each resource.
    pub tokens: HashMap<Resource, Token>,
    /// Whether all requests of the process before this one had ended.
    pub is_settled: bool,
}

/// The gate. A clone is another handle to it.
#[derive(Clone)]
pub(super) struct Gate(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    record: Arc<dyn Record>,
    /// `None` if tokens are trusted.
    verify: Option<Arc<dyn Verify>>,
    /// `None` if this is the only fence.
    lead: Option<Arc<dyn Lead>>,
    clock: Arc<dyn Clock>,
    limits: Limits,
    /// Until then the service may work on requests of the process before this one.
    settled_at: Moment,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct State {
    /// Whether no more requests pass.
    is_closed: bool,
    entries: HashMap<Resource, Entry>,
    raising: HashMap<(Resource, Token), Raising>,
}

#[derive(Default)]
struct Entry {
    guarded: Guarded,
    /// Since when the tokens of its running older requests are stale.
    stale_since: Moment,
    /// Wakes those that wait for older requests.
    changed: Arc<Notify>,
    cuts: HashMap<Token, Cuts>,
}

/// Cut the requests with one token.
#[derive(Clone, Default)]
struct Cuts {
    requests: CancellationToken,
    tunnels: CancellationToken,
}

/// The maximum number of new tokens that are verified and recorded at once.
const RAISING_MAX: usize = 256;
/// How long a request waits for that. The sidecar has a shorter limit of its own, and a disk may hang.
const RAISING_WITHIN: Duration = Duration::from_secs(30);

type Raising = Shared<BoxFuture<'static, Result<(), Refusal>>>;

enum Next {
    Pass(Pass),
    Raise(Raising),
    Wait {
        changed: BoxFuture<'static, ()>,
        until: Moment,
    },
}

impl Gate {
    pub(super) fn new(
        recorded: Recorded,
        record: Arc<dyn Record>,
        verify: Option<Arc<dyn Verify>>,
        lead: Option<Arc<dyn Lead>>,
        clock: Arc<dyn Clock>,
        limits: Limits,
        metrics: Arc<Metrics>,
    ) -> Self {
        let entry = |(resource, token)| {
            let guarded = Guarded::recorded(token);
            let entry = Entry {
                guarded,
                ..Entry::default()
            };
            (resource, entry)
        };
        let entries: HashMap<_, _> = recorded.tokens.into_iter().map(entry).collect();
        metrics.resources(entries.len());
        let settle = if recorded.is_settled {
            Duration::ZERO
        } else {
            limits.settle
        };
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                entries,
                ..State::default()
            }),
            record,
            verify,
            lead,
            settled_at: clock.now().after(settle),
            clock,
            limits,
            metrics,
        }))
    }

    /// Waits until a request may be forwarded.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub(super) async fn pass(&self, resource: &Resource, token: Token) -> Result<Pass, Refusal> {
        let mut is_logged = false;
        loop {
            match self.next(resource, token)? {
                Next::Pass(pass) => return Ok(pass),
                Next::Raise(raising) => {
                    let raised = tokio::time::timeout(RAISING_WITHIN, raising).await;
                    raised.unwrap_or_else(|_elapsed| Err(hangs(token)))?;
                }
                Next::Wait { changed, until } => {
                    if !is_logged {
                        is_logged = true;
                        tracing::info!(
                            %resource, fencingToken = token.get(), "request waits for older requests"
                        );
                    }
                    self.wait(resource, token, changed, until).await;
                }
            }
        }
    }

    /// Waits for a change until a moment. If older requests are running then, it cuts them, and waits on.
    async fn wait(
        &self,
        resource: &Resource,
        token: Token,
        mut changed: BoxFuture<'static, ()>,
        until: Moment,
    ) {
        tokio::select! {
            () = &mut changed => {}
            () = self.sleep_until(until) => {
                if self.cut_older(resource, token) {
                    changed.await;
                }
            }
        }
    }

    fn next(&self, resource: &Resource, token: Token) -> Result<Next, Refusal> {
        let now = self.now();
        let mut state = self.state();
        if state.is_closed {
            let detail = "the fence is shutting down, and nothing was sent; try again";
            return Err(Refusal::new(Code::ShuttingDown, detail));
        }
        if self.has_lost(now) {
            let detail = "the lease of this fence has ended, and nothing was sent; try again, at another one";
            return Err(Refusal::new(Code::NotLeading, detail));
        }
        let Some(entry) = state.entries.get_mut(resource) else {
            return self.raising(&mut state, resource, token).map(Next::Raise);
        };
        match entry.guarded.admit(token, now) {
            Admission::Forward if now < self.0.settled_at => Ok(Next::Wait {
                changed: pending().boxed(),
                until: self.0.settled_at,
            }),
            Admission::Forward => {
                entry.guarded.begin(token);
                let cuts = entry.cuts.entry(token).or_default();
                // The lead ended, and began again.
                if cuts.requests.is_cancelled() {
                    *cuts = Cuts::default();
                }
                let cuts = cuts.clone();
                Ok(Next::Pass(Pass {
                    gate: self.clone(),
                    resource: resource.clone(),
                    token,
                    cuts,
                    is_answered: AtomicBool::new(false),
                }))
            }
            Admission::Raise => self.raising(&mut state, resource, token).map(Next::Raise),
            Admission::Stale { latest } => Err(Refusal::stale(resource, token, latest)),
            Admission::Wait { until } => Ok(Next::Wait {
                // Created before the lock is released, so that it misses no change.
                changed: entry.changed.clone().notified_owned().boxed(),
                // Also if the client of the newer token has repeated its request since.
                until: until.unwrap_or(entry.stale_since.after(self.0.limits.older_requests)),
            }),
        }
    }

    /// Returns whether this was one of several fences that led.
    fn has_lost(&self, now: Moment) -> bool {
        let lead = self.0.lead.as_ref();
        lead.is_some_and(|lead| now >= lead.until())
    }

    /// Returns the one task that verifies and records a token, for all requests with it.
    fn raising(
        &self,
        state: &mut State,
        resource: &Resource,
        token: Token,
    ) -> Result<Raising, Refusal> {
        let key = (resource.clone(), token);
        if let Some(raising) = state.raising.get(&key) {
            return Ok(raising.clone());
        }
        // Each is a call of a sidecar, and of the API server.
        if state.raising.len() >= RAISING_MAX {
            let detail = "too many new tokens are being verified; try again";
            return Err(Refusal::new(Code::TooManyRequests, detail));
        }
        let is_new = |resource: &Resource| !state.entries.contains_key(resource);
        let arriving = state.raising.keys().filter(|(other, _)| is_new(other));
        if is_new(resource) && state.entries.len() + arriving.count() >= self.0.limits.resources {
            return Err(Refusal::new(
                Code::TooManyResources,
                format!(
                    "{} resources are recorded; raise --max-resources",
                    state.entries.len()
                ),
            ));
        }
        // A task, because the result is kept also if each of these clients disconnects.
        let (gate, raised) = (self.clone(), key.clone());
        let task = tokio::spawn(async move {
            let (resource, token) = (raised.0, raised.1);
            let done = gate.verify_and_record(&resource, token).await;
            gate.raised(&resource, token, done.is_ok());
            done
        });
        let (gate, failed) = (self.clone(), key.clone());
        let raising = task.map(move |done| {
            done.unwrap_or_else(|_panicked| {
                gate.raised(&failed.0, failed.1, false);
                let detail = "the fence failed; see its log";
                Err(Refusal::new(Code::StateUnavailable, detail))
            })
        });
        let raising = raising.boxed().shared();
        state.raising.insert(key, raising.clone());
        Ok(raising)
    }

    async fn verify_and_record(&self, resource: &Resource, token: Token) -> Result<(), Refusal> {
        if let Some(verify) = &self.0.verify {
            let verdict = verify.verify(resource, token).await.map_err(|error| {
                tracing::warn!(%resource, %error, "verifying a token failed");
                let detail =
                    format!("{token} is new here, and the lock {resource} cannot be read: {error}");
                Refusal::new(Code::LockUnavailable, detail)
            })?;
            match verdict {
                Verdict::Current => {}
                Verdict::Stale { latest } => return Err(Refusal::ended(resource, token, latest)),
                Verdict::Unknown { latest } => {
                    return Err(Refusal::unknown(resource, token, latest));
                }
            }
        }
        let began = self.now();
        let recorded = self.0.record.record(resource, token).await;
        if let Err(error) = recorded {
            tracing::error!(%resource, %error, "recording a token failed");
            let detail = format!("{token} cannot be recorded: {error}");
            return Err(Refusal::new(Code::StateUnavailable, detail));
        }
        self.0.metrics.recorded(self.now().since(began));
        Ok(())
    }

    fn raised(&self, resource: &Resource, token: Token, is_recorded: bool) {
        let now = self.now();
        let mut state = self.state();
        state.raising.remove(&(resource.clone(), token));
        if is_recorded {
            let entry = state.entries.entry(resource.clone()).or_default();
            // Requests that callers already wait for get no more time.
            let runs_older = entry.guarded.runs_older();
            if entry.guarded.raise(token) && !runs_older {
                entry.stale_since = now;
            }
            // A tunnel does not end by itself.
            for (_, cuts) in entry.cuts.iter().filter(|(older, _)| **older < token) {
                cuts.tunnels.cancel();
            }
            // Those that wait with a smaller token are stale.
            entry.changed.notify_waiters();
            self.0.metrics.resources(state.entries.len());
        }
    }

    /// Cuts the requests with older tokens. Returns whether there are any.
    fn cut_older(&self, resource: &Resource, token: Token) -> bool {
        let state = self.state();
        let Some(entry) = state.entries.get(resource) else {
            return false;
        };
        let mut are_running = false;
        for (older, cuts) in entry.cuts.iter().filter(|(older, _)| **older < token) {
            are_running = true;
            if !cuts.requests.is_cancelled() {
                tracing::warn!(%resource, olderToken = older.get(), fencingToken = token.get(), "cutting older requests");
                cuts.requests.cancel();
            }
        }
        are_running
    }

    fn ended(&self, pass: &Pass) {
        let now = self.now();
        let end = if pass.is_answered.load(Ordering::Relaxed) {
            End::Known
        } else {
            let settled_at = now.after(self.0.limits.settle);
            End::Unknown { settled_at }
        };
        let mut state = self.state();
        if let Some(entry) = state.entries.get_mut(&pass.resource) {
            entry.guarded.end(pass.token, end, now);
            if !entry.guarded.runs(pass.token) {
                entry.cuts.remove(&pass.token);
                entry.changed.notify_waiters();
            }
        }
    }

    /// Lets no more requests pass. Returns whether none is running or unsettled.
    pub(super) fn close(&self) -> bool {
        let now = self.now();
        let mut state = self.state();
        state.is_closed = true;
        let is_settled = |entry: &Entry| entry.guarded.is_settled(now);
        now >= self.0.settled_at && state.entries.values().all(is_settled)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Moment {
        self.0.clock.now()
    }

    /// Timers only wake; the clock decides.
    async fn sleep_until(&self, moment: Moment) {
        loop {
            let rest = moment.since(self.now());
            if rest.is_zero() {
                return;
            }
            tokio::time::sleep(rest).await;
        }
    }
}

fn hangs(token: Token) -> Refusal {
    let detail = format!(
        "{token} was not verified and recorded in {} s; nothing was sent",
        RAISING_WITHIN.as_secs()
    );
    Refusal::new(Code::StateUnavailable, detail)
}

#[cfg(test)]
mod tests;
