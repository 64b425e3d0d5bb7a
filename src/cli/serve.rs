//! Serves an agent until a signal, in the same way for every role with an agent.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::file_limit;
use super::flags::Flags;
use super::listen::{self, AdminDefault};
use super::unix_socket::{self, Socket, SocketFile};
use crate::admin;
use crate::agent::Agent;
use crate::clock::SystemClock;
use crate::http;
use crate::http::serve::{Bounds, serve};

/// Runs a role, if the system has the required clock. One thread is enough for one pod, and keeps
/// memory and latency low.
pub(super) fn block_on<T>(role: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    SystemClock::check()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    let done = runtime.block_on(role);
    // A write to a pipe without a reader may be in flight, and would block the exit forever.
    runtime.shutdown_background();
    done
}

/// The listeners of a role.
pub(super) struct Listeners {
    api: Vec<TcpListener>,
    socket: Option<Socket>,
    compat: Vec<TcpListener>,
    admin: Option<TcpListener>,
}

/// The bound addresses of a role.
pub(super) struct BoundAddresses {
    pub(super) api: Vec<SocketAddr>,
    pub(super) socket: Option<PathBuf>,
    pub(super) admin: Option<SocketAddr>,
}

impl Listeners {
    /// Binds the listeners of the flags or the defaults.
    pub(super) async fn bind(flags: &Flags, admin: AdminDefault) -> anyhow::Result<Self> {
        let compat = match flags.elections.compat() {
            Some((_, port)) => listen::bind_local(port, "--compat-port").await?,
            None => Vec::new(),
        };
        let asked = &flags.listening;
        Ok(Self {
            compat,
            api: listen::bind_api(&asked.listen).await?,
            admin: listen::bind_admin(asked.admin_listen, admin).await?,
            socket: match &asked.unix_socket {
                Some(path) => Some(unix_socket::bind(path, unix_socket::ALL_USERS).await?),
                None => None,
            },
        })
    }

    /// Also listens on a socket, if the flags have none. Its path may be too long, or its file system may
    /// have no sockets: that is not an error.
    pub(super) async fn listen_by_default(&mut self, socket: &Path) {
        if self.socket.is_some() {
            return;
        }
        let path = unix_socket::path(socket.to_owned()).map_err(anyhow::Error::msg);
        let bound = match path {
            Ok(path) => unix_socket::bind(&path, unix_socket::OWN_USER).await,
            Err(error) => Err(error),
        };
        match bound {
            Ok(socket) => self.socket = Some(socket),
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "default socket not available; skipped"
            ),
        }
    }

    /// Returns the bound addresses, with actual ports.
    pub(super) fn addresses(&self) -> anyhow::Result<BoundAddresses> {
        let api = self.api.iter().map(listen::address);
        let socket = self.socket.as_ref();
        Ok(BoundAddresses {
            api: api.collect::<Result<_, _>>()?,
            socket: socket.map(|socket| socket.file.path().to_owned()),
            admin: self.admin.as_ref().map(listen::address).transpose()?,
        })
    }

    /// Serves until `signalled`, then as long as the agent needs to stop.
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
        // The file is removed with the server, however it ends.
        let _file: Option<SocketFile> = self.socket.map(|Socket { listener, file }| {
            listen::log_listening(&file.path().display(), "locks");
            let router = http::over_unix_socket(router);
            servers.spawn(serve(listener, router, Bounds::API, stop.clone()));
            file
        });
        for listener in self.compat {
            listen::announce(&listener, "compat")?;
            if let Some((compat, _)) = flags.elections.compat() {
                let router = http::compat_router(agent.clone(), flags.http_options(), compat);
                servers.spawn(serve(listener, router, Bounds::API, stop.clone()));
            }
        }
        if let Some(listener) = self.admin {
            listen::announce(&listener, "admin")?;
            let admin = admin::router(agent.clone());
            servers.spawn(serve(listener, admin, Bounds::ADMIN, stop.clone()));
        }

        // Started after the servers, so that a leader can be reached.
        flags.elections.run(&agent);
        run_while_serving(&mut servers, signalled.cancelled()).await?;
        // Apps still renew and release while the agent waits for them.
        run_while_serving(&mut servers, agent.shut_down(flags.on_term())).await?;
        stop.cancel();
        while let Some(ended) = servers.join_next().await {
            ended.context("a server failed while it stopped")?;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Awaits `work`. A server that ends meanwhile is an error.
pub(super) async fn run_while_serving<T>(
    servers: &mut JoinSet<()>,
    work: impl Future<Output = T>,
) -> anyhow::Result<T> {
    tokio::select! {
        done = work => Ok(done),
        Some(ended) = servers.join_next() => {
            ended.context("a server failed")?;
            anyhow::bail!("a server ended unexpectedly")
        }
    }
}
