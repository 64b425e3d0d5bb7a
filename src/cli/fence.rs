//! `leasehold fence`: a reverse proxy that refuses stale writers. It wires the state file, the verification by a
//! sidecar, and the servers.

mod args;
mod lease;
mod verify;

use std::future::pending;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use http::uri::Authority;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::listen::{self, AdminAddress};
use super::serve::{block_on, run_while_serving};
use super::{file_limit, or_usage_error};
use crate::admin::{self, AdminStatus};
use crate::clock::{Clock as _, SystemClock};
use crate::fence::{Fence, InMemory, Lead, Metrics, Record, Recorded, Report, StateFile, Verify};
use crate::http::serve::{Bounds, serve};
use crate::shutdown;
use lease::Lease;
use verify::Sidecar;

pub(super) use args::Args;

/// Runs until a signal.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    or_usage_error(args.check());
    let rules = or_usage_error(args.rules());
    let _log = args.log.start_in_background(false)?;
    // A client and the service have a connection each.
    file_limit::raise_to(u64::from(args.max_connections) * 2 + 256);
    block_on(async {
        let signalled = shutdown::on_signal().context("signals cannot be handled")?;
        let (file, recorded) = open(args.state_dir.as_deref())?;
        let lease = if args.leader {
            Some(Lease::of_exec().await?)
        } else {
            None
        };
        log_start(args, &recorded);
        let listener = listen::bind_any(args.listen, "--listen").await?;
        let metrics = Arc::new(Metrics::new()?);
        let sidecar = (!args.trust_tokens)
            .then(|| Arc::new(Sidecar::new(args.url.clone(), args.upstream.as_ref())));
        let fence = Fence {
            upstream: args.upstream(),
            rules,
            verify: sidecar.clone().map(|sidecar| sidecar as Arc<dyn Verify>),
            report: sidecar.map(|sidecar| sidecar as Arc<dyn Report>),
            lead: lease.clone().map(|lease| lease as Arc<dyn Lead>),
            clock: Arc::new(SystemClock),
            limits: args.limits(),
            max_requests: args.max_requests(),
            connections: args.connections(),
            access_log: args.access_log(),
            metrics: metrics.clone(),
        };
        let stop_admin = CancellationToken::new();
        let mut servers = JoinSet::new();
        let status = Status {
            metrics,
            lease: lease.clone(),
            stopping: signalled.clone(),
        };
        if let AdminAddress::At(address) = args.admin_listen {
            let admin = listen::bind_any(address, listen::ADMIN).await?;
            listen::announce(&admin, "admin")?;
            let stop = stop_admin.clone();
            servers.spawn(serve(admin, admin::router(status), Bounds::ADMIN, stop));
        }
        listen::announce(&listener, "fence")?;
        let record = match &file {
            Some(file) => file.clone() as Arc<dyn Record>,
            None => Arc::new(InMemory),
        };
        let served = fence.serve(listener, record, recorded, signalled);
        let served = tokio::select! {
            served = run_while_serving(&mut servers, served) => served?,
            // Requests may run no longer: the next leader waits only for `--settle`.
            () = end_of(lease) => bail!("the lease of `leasehold exec` is over"),
        };
        if served && let Some(file) = file {
            let settled = file.settle().await.map_err(anyhow::Error::msg);
            settled.context("the state file")?;
        }
        stop_admin.cancel();
        while let Some(ended) = servers.join_next().await {
            ended.context("a server failed while it stopped")?;
        }
        tracing::info!("stopped");
        Ok(())
    })
}

/// Waits until a lease is over; without a lease, forever.
async fn end_of(lease: Option<Arc<Lease>>) {
    match lease {
        Some(lease) => lease.follow().await,
        None => pending().await,
    }
}

fn log_start(args: &Args, recorded: &Recorded) {
    let verification = if args.trust_tokens {
        "none".to_owned()
    } else {
        args.url.to_string()
    };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        upstream = args.upstream.as_ref().map(Authority::as_str),
        verification,
        resources = recorded.tokens.len(),
        settleSeconds = if recorded.is_settled {
            0
        } else {
            args.limits().settle.as_secs()
        },
        "fence starting"
    );
}

/// Opens the state file, if the fence has one.
fn open(directory: Option<&Path>) -> anyhow::Result<(Option<Arc<StateFile>>, Recorded)> {
    let Some(directory) = directory else {
        return Ok((None, Recorded::default()));
    };
    let (file, recorded) = StateFile::open(directory)?;
    Ok((Some(Arc::new(file)), recorded))
}

struct Status {
    metrics: Arc<Metrics>,
    lease: Option<Arc<Lease>>,
    stopping: CancellationToken,
}

impl AdminStatus for Status {
    fn ready(&self) -> Result<(), String> {
        if self.stopping.is_cancelled() {
            return Err("shutting down".to_owned());
        }
        let lease = self.lease.as_ref();
        if lease.is_some_and(|lease| SystemClock.now() >= lease.until()) {
            return Err("the lease has ended".to_owned());
        }
        Ok(())
    }

    fn metrics(&self) -> String {
        self.metrics.encode()
    }
}
