//! A reverse proxy that refuses stale writers, for a service that cannot compare fencing tokens.
//!
//! Requests that may change something carry a token and the name of a resource. The `gate` decides in the order of
//! tokens, `guarded` is its pure part, and `file` keeps the largest tokens (`memory` for one of several fences). `rules`
//! decides which requests need a token, `handler` answers each request, and `forward` exchanges it with the service.
//! `reports` shows the refused writers in the lock. HTTP itself is hyper's.
//!
//! It protects only if the service is reachable through this one process, or the one of several that leads, and if the
//! service works on a request for a limited time after its connection was closed (`Limits::settle`).

mod body;
mod exchange;
mod file;
mod forward;
mod gate;
mod guarded;
mod handler;
mod headers;
mod memory;
mod metrics;
mod refusal;
mod reports;
mod rules;
mod server;
mod tunnel;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Clock;
use gate::Gate;
use handler::Handler;
use reports::Reports;

pub use exchange::AccessLog;
pub use file::{StateError, StateFile};
pub use forward::Upstream;
pub use gate::{Lead, Limits, Record, Recorded, Verdict, Verify};
pub use memory::InMemory;
pub use metrics::Metrics;
pub use reports::{Refused, Report, ReportError};
pub use rules::{Rules, Source, paths};
pub use server::ConnectionLimits;

/// How much of a body a stream of HTTP/2 holds whose receiver reads slowly.
const STREAM_WINDOW: u32 = 128 * 1024;
/// No limit for all streams together: a few of them would use it up, and stop the others of their connection.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// After this time without data the system asks whether the other side of a connection still exists.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// What a fence is made of.
pub struct Fence {
    /// The service. `None` if another proxy forwards the requests, and asks here whether it may.
    pub upstream: Option<Upstream>,
    /// Which requests need a token.
    pub rules: Rules,
    /// Verifies new tokens; `None` trusts them.
    pub verify: Option<Arc<dyn Verify>>,
    /// Receives reports of refused stale writes; `None` sends none.
    pub report: Option<Arc<dyn Report>>,
    /// The lead, if this is one of several fences.
    pub lead: Option<Arc<dyn Lead>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The limits of tokens.
    pub limits: Limits,
    /// The maximum number of requests at once.
    pub max_requests: usize,
    /// The limits of connections.
    pub connections: ConnectionLimits,
    /// What is logged.
    pub access_log: AccessLog,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

impl Fence {
    /// Serves until `stop`, then lets requests end. Returns whether all have ended.
    pub async fn serve(
        self,
        listener: TcpListener,
        record: Arc<dyn Record>,
        recorded: Recorded,
        stop: CancellationToken,
    ) -> bool {
        let gate = Gate::new(
            recorded,
            record,
            self.verify,
            self.lead,
            self.clock.clone(),
            self.limits,
            self.metrics.clone(),
        );
        let reports = self.report.map(|report| {
            let reports = Arc::new(Reports::default());
            let reporting = AbortOnDropHandle::new(tokio::spawn(reports.clone().run(report)));
            (reports, reporting)
        });
        let handler = Handler::new(
            gate.clone(),
            self.metrics,
            self.clock,
            (self.rules, self.upstream),
            reports.as_ref().map(|(reports, _)| reports.clone()),
            self.max_requests,
            self.access_log,
        );
        server::serve(listener, Arc::new(handler), self.connections, stop).await;
        gate.close()
    }
}
