//! `leasehold sidecar`: serves locks to the apps of one pod. Here store, agent and servers are
//! put together; nothing is decided.

mod args;

use std::sync::Arc;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::cluster::Cluster;
use super::listen;
use crate::agent::{Agent, Config};
use crate::clock::SystemClock;
use crate::http::serve::{Bounds, serve};
use crate::http::{self, HttpOptions};
use crate::k8s::{K8sLockStore, K8sSessionStore};
use crate::{admin, shutdown, telemetry};

pub(super) use args::Args;

/// Runs until a signal.
pub(super) fn run(args: Args, config: Config) -> anyhow::Result<()> {
    let filter = telemetry::filter(&args.log_level).context("--log-level")?;
    telemetry::init(args.log_format(), filter);
    // One thread is enough for one pod, and keeps the sidecar small and its latency low.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    runtime.block_on(serve_until_signal(args, config))
}

async fn serve_until_signal(args: Args, config: Config) -> anyhow::Result<()> {
    let signalled = shutdown::on_signal().context("signals cannot be handled")?;
    let cluster = args.cluster.connect().await?;
    let api_listeners = listen::bind_api(&args.listen).await?;
    let admin_listener = listen::bind_admin(args.admin_listen).await?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), pod = %config.pod.name, podUid = %config.pod.uid,
        namespace = cluster.namespace, server = cluster.server,
        sessionTtlSeconds = config.session_ttl.as_secs(), "sidecar starting"
    );

    let on_term = args.on_term();
    let agent = agent(config, cluster);
    let options = HttpOptions {
        allowed_hosts: args.allow_host,
    };
    let router = http::router(agent.clone(), options);
    let stop = CancellationToken::new();
    let mut servers = JoinSet::new();
    for listener in api_listeners {
        listen::announce(&listener, "locks")?;
        servers.spawn(serve(listener, router.clone(), Bounds::API, stop.clone()));
    }
    listen::announce(&admin_listener, "admin")?;
    let admin = admin::router(agent.clone());
    servers.spawn(serve(admin_listener, admin, Bounds::ADMIN, stop.clone()));

    while_served(&mut servers, signalled.cancelled()).await?;
    // Apps still renew and release while the agent waits for them.
    while_served(&mut servers, agent.shut_down(on_term)).await?;
    stop.cancel();
    while let Some(ended) = servers.join_next().await {
        ended.context("a server failed while it stopped")?;
    }
    tracing::info!("stopped");
    Ok(())
}

fn agent(config: Config, cluster: Cluster) -> Agent {
    let locks = K8sLockStore::new(cluster.client.clone(), &cluster.namespace);
    let sessions = K8sSessionStore::new(cluster.client, &cluster.namespace);
    let clock = Arc::new(SystemClock);
    Agent::new(config, Arc::new(locks), Arc::new(sessions), clock)
}

/// Awaits `work`; a server that ends meanwhile is a failure that nobody must miss.
async fn while_served(
    servers: &mut JoinSet<()>,
    work: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tokio::select! {
        () = work => Ok(()),
        Some(ended) = servers.join_next() => {
            ended.context("a server failed")?;
            anyhow::bail!("a server ended by itself")
        }
    }
}
