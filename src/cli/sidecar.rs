//! `leasehold sidecar`: serves locks to the apps of one pod. Here store, agent and servers are
//! put together; nothing is decided.

mod args;

use std::sync::Arc;

use anyhow::Context;

use super::cluster::Cluster;
use super::listen::AdminDefault;
use super::serve::{Listeners, block_on};
use crate::agent::{Agent, Config};
use crate::clock::SystemClock;
use crate::k8s::{K8sLockStore, K8sSessionStore};
use crate::{http, shutdown};

pub(super) use args::Args;

/// Runs until a signal.
pub(super) fn run(args: &Args, config: Config) -> anyhow::Result<()> {
    args.flags.start_log()?;
    block_on(serve_until_signal(args, config))
}

async fn serve_until_signal(args: &Args, config: Config) -> anyhow::Result<()> {
    let signalled = shutdown::on_signal().context("signals cannot be handled")?;
    let cluster = args.cluster.connect().await?;
    let listeners = Listeners::bind(&args.flags, AdminDefault::Everywhere).await?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), pod = %config.pod.name, podUid = %config.pod.uid,
        namespace = cluster.namespace, server = cluster.server,
        sessionTtlSeconds = config.session_ttl.as_secs(), "sidecar starting"
    );
    let agent = agent(config, cluster);
    let router = http::router(agent.clone(), args.flags.http_options());
    listeners.serve(agent, router, &args.flags, signalled).await
}

fn agent(config: Config, cluster: Cluster) -> Agent {
    let locks = K8sLockStore::new(cluster.client.clone(), &cluster.namespace);
    let sessions = K8sSessionStore::new(cluster.client, &cluster.namespace);
    let clock = Arc::new(SystemClock);
    Agent::new(config, Arc::new(locks), Arc::new(sessions), clock)
}
