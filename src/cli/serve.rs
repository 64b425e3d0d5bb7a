//! Serving an agent until a signal: what every role with one does in the same way.

use std::net::SocketAddr;

use anyhow::Context;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::file_limit;
use super::flags::Flags;
use super::listen::{self, AdminDefault};
use crate::admin;
use crate::agent::Agent;
use crate::clock::SystemClock;
use crate::http;
use crate::http::serve::{Bounds, serve};

/// Runs a role, on a system that has the clock for it. One thread is enough for one pod, and keeps
/// the process small and its latency low.
pub(super) fn block_on(role: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    SystemClock::check()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    runtime.block_on(role)
}

/// Where a role listens.
pub(super) struct Listeners {
    api: Vec<TcpListener>,
    compat: Vec<TcpListener>,
    admin: TcpListener,
}

impl Listeners {
    /// Binds what the flags ask for, else the defaults.
    pub(super) async fn bind(flags: &Flags, admin: AdminDefault) -> anyhow::Result<Self> {
        let compat = match flags.elections.compat() {
            Some((_, port)) => listen::bind_local(port, "--compat-port").await?,
            None => Vec::new(),
        };
        Ok(Self {
            compat,
            api: listen::bind_api(&flags.listen).await?,
            admin: listen::bind_admin(flags.admin_listen, admin).await?,
        })
    }

    /// The addresses of the API, and the one of the admin port.
    pub(super) fn addresses(&self) -> anyhow::Result<(Vec<SocketAddr>, SocketAddr)> {
        let api = self.api.iter().map(listen::address);
        Ok((
            api.collect::<Result<_, _>>()?,
            listen::address(&self.admin)?,
        ))
    }

    /// Serves until `signalled`, then for as long as the agent needs to stop.
    pub(super) async fn serve(
        self,
        agent: Agent,
        router: http::Router,
        flags: &Flags,
        signalled: CancellationToken,
    ) -> anyhow::Result<()> {
        file_limit::raise();
        let stop = CancellationToken::new();
        let mut servers = JoinSet::new();
        for listener in self.api {
            listen::announce(&listener, "locks")?;
            servers.spawn(serve(listener, router.clone(), Bounds::API, stop.clone()));
        }
        for listener in self.compat {
            listen::announce(&listener, "compat")?;
            if let Some((compat, _)) = flags.elections.compat() {
                let router = http::compat_router(agent.clone(), flags.http_options(), compat);
                servers.spawn(serve(listener, router, Bounds::API, stop.clone()));
            }
        }
        listen::announce(&self.admin, "admin")?;
        let admin = admin::router(agent.clone());
        servers.spawn(serve(self.admin, admin, Bounds::ADMIN, stop.clone()));

        // Whoever hears that it leads can be asked by then.
        flags.elections.run(&agent);
        while_served(&mut servers, signalled.cancelled()).await?;
        // Apps still renew and release while the agent waits for them.
        while_served(&mut servers, agent.shut_down(flags.on_term())).await?;
        stop.cancel();
        while let Some(ended) = servers.join_next().await {
            ended.context("a server failed while it stopped")?;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Awaits `work`; a server that ends meanwhile is a failure that nobody must miss.
pub(super) async fn while_served<T>(
    servers: &mut JoinSet<()>,
    work: impl Future<Output = T>,
) -> anyhow::Result<T> {
    tokio::select! {
        done = work => Ok(done),
        Some(ended) = servers.join_next() => {
            ended.context("a server failed")?;
            anyhow::bail!("a server ended by itself")
        }
    }
}
