//! The engine inside a sidecar: at most one session, its grants and their leases.
//!
//! It drives `protocol` against the ports of `store` and knows neither HTTP nor Kubernetes. What
//! it deliberately does not do: it never judges by wall-clock time, never repeats a write whose
//! outcome it does not know without reading first, and never believes in a lease that the clock
//! has ended, whatever its timers did.
//!
//! This file is what callers see. The core decides, the driver executes, and the other modules wait for
//! what comes of that.

mod acquire;
mod api;
mod complete;
mod config;
mod core;
mod driver;
mod election;
mod events;
mod hold;
mod journal;
mod metrics;
mod observe;
mod query;
mod refusals;
mod release;
mod resume;
mod state;
mod stop;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use api::{
    AcquireError, AcquireRequest, Acquired, CompleteError, ElectionError, ElectionView, HeldView,
    HoldError, HolderView, Lead, LeaseError, LeaseView, Life, LockPage, LockView, QueryError,
    Released, Silence, TooManyStreams, Verified, WaiterView,
};
pub use config::{Config, OnTerm};
pub use election::campaign::Campaign;
pub use election::events::{ElectionEvent, ElectionEvents};
pub use events::{EventsError, LeaseEvent, LeaseEvents, Request};
pub use hold::Hold;
pub use journal::{Journal, Memory, Past};
pub use metrics::Metrics;
pub use refusals::{EVENT_PAUSE, EventOutcome, ReportError, Reported};

use self::core::answers;
use crate::clock::Clock;
use crate::protocol::completed::CompletionKey;
use crate::protocol::election::ElectionName;
use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::session::PodRef;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;
use crate::store::cluster::{RefusalEvents, RefusedWrite};
use crate::store::{LockStore, SessionStore, StoreError};
use driver::Driver;
use metrics::Gauges;
use refusals::Refusals;

/// The agent. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Agent {
    driver: Driver,
    refusals: Arc<Refusals>,
}

impl Agent {
    /// Makes an agent. It asks nothing of the stores before the first acquire. Must be called
    /// inside a tokio runtime.
    #[must_use]
    pub fn new(
        config: Config,
        locks: Arc<dyn LockStore>,
        sessions: Arc<dyn SessionStore>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            driver: Driver::new(config, locks, sessions, clock),
            refusals: Arc::default(),
        }
    }

    /// Returns an agent that continues what the process before it did, as far as it may, and writes down
    /// what the process after it must know. Must be called inside a tokio runtime.
    #[must_use]
    pub fn with_memory(
        config: Config,
        locks: Arc<dyn LockStore>,
        sessions: Arc<dyn SessionStore>,
        clock: Arc<dyn Clock>,
        memory: Memory,
    ) -> Self {
        let agent = Self::new(config, locks, sessions, clock);
        resume::recall(&agent.driver, memory);
        agent
    }

    /// Returns the same agent, which also writes Events about refused writes.
    #[must_use]
    pub fn with_refusal_events(self, events: Arc<dyn RefusalEvents>) -> Self {
        Self {
            refusals: Arc::new(Refusals::new(events)),
            ..self
        }
    }

    /// The local clock. Take the arrival of a request from here, before its body is read.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.driver.now()
    }

    /// The pod that the agent speaks for.
    #[must_use]
    pub fn pod(&self) -> &PodRef {
        &self.driver.config.pod
    }

    /// The TTL of its sessions.
    #[must_use]
    pub fn session_ttl(&self) -> Duration {
        self.driver.config.session_ttl.get()
    }

    /// The metrics, with the gauges brought up to date.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        let now = self.now();
        let gauges = {
            let state = self.driver.state();
            let remaining = state.session().map(|live| live.remaining(now));
            Gauges {
                session_remaining: remaining.unwrap_or_default(),
                leases: state.core.own.len(),
                waiters: state.core.acquiring.waiting(),
                streams: self.driver.streams.open(),
                kept: state.core.own.warm_len(),
                has_journal: state.journal.is_on(),
            }
        };
        self.driver.metrics.set_gauges(&gauges);
        &self.driver.metrics
    }

    /// Takes a lock: one try, or as long as the request waits. `arrived` is when it came in.
    ///
    /// # Errors
    /// [`AcquireError`]; nothing is held through this request then.
    pub async fn acquire(
        &self,
        request: AcquireRequest,
        arrived: Moment,
    ) -> Result<Acquired, AcquireError> {
        acquire::acquire(&self.driver, request, arrived).await
    }

    /// Acquires a lock for a connection: the lock is released when the returned value is dropped.
    /// Returns as soon as the first event is known.
    ///
    /// # Errors
    /// [`HoldError`] if the acquire fails or its wait ends before the first event. No lease exists then.
    pub async fn hold(&self, request: AcquireRequest, arrived: Moment) -> Result<Hold, HoldError> {
        Hold::open(&self.driver, request, arrived).await
    }

    /// Renews a lease: the app lives, and is told how long it may go on. With `ttl` the app's own
    /// TTL changes; one that a connection holds has none. While the agent is stopping, no deadline moves any more.
    ///
    /// # Errors
    /// [`LeaseError`] when the lease is unknown, released or lost.
    pub fn renew(
        &self,
        lease: &LeaseId,
        ttl: Option<Duration>,
        arrived: Moment,
    ) -> Result<LeaseView, LeaseError> {
        self.driver
            .with_leases(|leases| answers::renew(leases, lease, ttl, arrived))
    }

    /// What a lease has left. Asking is no sign of the app's life.
    ///
    /// # Errors
    /// [`LeaseError`] when the lease is unknown, released or lost.
    pub fn lease(&self, lease: &LeaseId, arrived: Moment) -> Result<LeaseView, LeaseError> {
        self.driver
            .with_leases(|leases| answers::read(leases, lease, arrived))
    }

    /// Ends a lease at its app's word.
    ///
    /// # Errors
    /// [`LeaseError`] when the lease is unknown or was lost before, also when the store says so
    /// only now. Releasing twice is no error.
    pub async fn release(&self, lease: &LeaseId) -> Result<Released, LeaseError> {
        release::release(&self.driver, lease).await
    }

    /// Records in the lock of a lease that guarded work has succeeded, and waits until the store has
    /// confirmed it.
    ///
    /// # Errors
    /// [`CompleteError`] when the lease is unknown, released or lost, or the store has not confirmed the
    /// record. It may be there then; repeating the call is harmless.
    pub async fn complete(
        &self,
        lease: &LeaseId,
        key: &CompletionKey,
    ) -> Result<(), CompleteError> {
        complete::complete(&self.driver, lease, key).await
    }

    /// Loses a lease before the deadline that its app was told, as when a person ended its grant. It
    /// happens only on request: `leasehold dev --fault-api`.
    ///
    /// # Errors
    /// [`LeaseError`] when there is no such lease (any more).
    pub fn lose(&self, lease: &LeaseId) -> Result<(), LeaseError> {
        self.lease(lease, self.now())?;
        self.driver
            .with_leases(|leases| leases.lose(lease, Loss::GrantGone));
        Ok(())
    }

    /// Why a lease is over, as it may be told: where that is being looked up, when it is known.
    pub async fn explained(&self, lease: &LeaseId, error: LeaseError) -> LeaseError {
        release::explained(&self.driver, lease, error).await
    }

    /// The events of a lease. They are no sign of its app's life, and it does not end with them.
    ///
    /// # Errors
    /// [`EventsError`] when there is no such lease, or no room for a stream.
    pub fn events(&self, lease: &LeaseId, arrived: Moment) -> Result<LeaseEvents, EventsError> {
        LeaseEvents::open(&self.driver, lease, arrived)
    }

    /// Who leads an election: this agent, until a deadline of its own, or whom the store named.
    ///
    /// # Errors
    /// [`ElectionError`] when there is no such election, or nothing is known and the store cannot
    /// be asked.
    pub async fn election(
        &self,
        election: &ElectionName,
        arrived: Moment,
    ) -> Result<ElectionView, ElectionError> {
        election::current::current(&self.driver, election, arrived).await
    }

    /// Whether this agent leads an election, by its own deadline.
    #[must_use]
    pub fn leads(&self, election: &ElectionName) -> bool {
        election::lead::lead(&self.driver, election, self.now()).is_some()
    }

    /// Answers when who leads an election may have changed here. Deadlines pass without a word.
    pub async fn elections_changed(&self) {
        let changed = self.driver.state().elections.changed.clone();
        changed.notified().await;
    }

    /// The events of an election, the first of them at once.
    ///
    /// # Errors
    /// [`ElectionError`] as for one question, or when there is no room for a stream.
    pub async fn election_events(
        &self,
        election: &ElectionName,
        arrived: Moment,
    ) -> Result<ElectionEvents, ElectionError> {
        ElectionEvents::open(&self.driver, election, arrived).await
    }

    /// Runs for an election from now on, until the agent stops.
    pub fn run_for(&self, campaign: Campaign) {
        self.run_for_while(campaign, watch::channel(true).1);
    }

    /// The same, but only while `fit` says so: it takes no lead before, and gives it up after.
    pub fn run_for_while(&self, campaign: Campaign, fit: watch::Receiver<bool>) {
        election::campaign::run_for_while(&self.driver, campaign, fit);
    }

    /// Runs for an election while an app asks about it.
    pub fn run_for_while_asked(&self, campaign: Campaign) {
        election::campaign::run_for_while_asked(&self.driver, campaign);
    }

    /// The namespace's locks whose resource starts with `prefix`. A page may be short, even
    /// empty, although more follow: the store is asked for at most ten pages of `limit`.
    ///
    /// # Errors
    /// [`QueryError`] when the store cannot be asked or has lost writes.
    pub async fn locks(
        &self,
        prefix: &str,
        limit: u32,
        next: Option<&str>,
    ) -> Result<LockPage, QueryError> {
        query::locks(&self.driver, prefix, limit, next).await
    }

    /// Whether a fencing token is the current one of a resource, as the store says now.
    ///
    /// # Errors
    /// [`QueryError`] when it cannot be known.
    pub async fn verify(&self, resource: &Resource, token: Token) -> Result<Verified, QueryError> {
        query::verify(&self.driver, resource, token).await
    }

    /// Counts a write that a guarded resource refused, if its token is stale as the store says now, and writes an
    /// Event about the lock if that is possible.
    ///
    /// # Errors
    /// [`ReportError`] when the token is not known to be stale. Nothing is counted then.
    pub async fn report_refusal(&self, refused: RefusedWrite) -> Result<Reported, ReportError> {
        refusals::report(&self.driver, &self.refusals, refused).await
    }

    /// Takes a look at the session of every holder. Writes nothing for those that it has not
    /// looked at before.
    ///
    /// # Errors
    /// What the store says; nothing is lost by it but time.
    pub async fn observe_holders(&self) -> Result<(), StoreError> {
        observe::observe_holders(&self.driver).await
    }

    /// Whether the agent takes new leases; a local fact that an outage of the store leaves alone.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.driver.state().is_draining()
    }

    /// Stops: no new leases, then ends the held ones as `on_term` says. The session ends too, and what
    /// is on file, unless promised leases are left to them.
    pub async fn shut_down(&self, on_term: OnTerm) {
        stop::shut_down(&self.driver, on_term).await;
    }
}
