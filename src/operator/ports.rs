//! The ports of the operator.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Clock;
use crate::pause::Pause;
use crate::random::Random;
use crate::store::cluster::{Candidates, EventStore, PodLabels};
use crate::store::fleet::FleetStore;
use crate::store::namespaces::Namespaces;

/// Whether this replica is the active one.
#[async_trait]
pub trait Leadership: Send + Sync + 'static {
    /// Returns whether this replica leads now, by its own deadline.
    fn leads(&self) -> bool;

    /// Completes when the result of [`Self::leads`] may have changed.
    async fn changed(&self);

    /// Sets whether this replica can be the active one. If it cannot, it does not run for the lead,
    /// or releases it.
    fn set_eligible(&self, is_eligible: bool);
}

/// The ports of the operator.
pub struct Ports {
    /// All locks and sessions.
    pub fleet: Arc<dyn FleetStore>,
    /// The Events.
    pub events: Arc<dyn EventStore>,
    /// The labels of pods.
    pub labels: Arc<dyn PodLabels>,
    /// The pods that are election candidates.
    pub candidates: Arc<dyn Candidates>,
    /// The labelled namespaces.
    pub namespaces: Arc<dyn Namespaces>,
    /// The audit log.
    pub audit: Arc<dyn AuditLog>,
    /// Whether this replica leads.
    pub leadership: Arc<dyn Leadership>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of jitter.
    pub random: Random,
    /// Suspends all tasks of the operator in a simulation. The caller suspends
    /// [`Operator::run`](super::Operator::run) itself.
    pub pause: Option<Pause>,
}

/// The destination of the audit log.
#[async_trait]
pub trait AuditLog: Send + Sync + 'static {
    /// Writes one line, without its line break. It may block without a limit, if nothing reads the
    /// other end of the pipe. That stops only the records, so it must not block a thread that
    /// others need.
    ///
    /// # Errors
    /// If the line cannot be written.
    async fn write(&self, line: &str) -> io::Result<()>;
}
