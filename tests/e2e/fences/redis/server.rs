//! Debian's Redis: one server, or a primary with a replica.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, cmd};

use super::super::server::{Daemon, new_directory, unprivileged};
use crate::harness::{PATIENCE, eventually, own_port};

const LIBRARY: &str = include_str!("../../../../fences/redis/leasehold.lua");

/// A server with its directory. Dropping it kills it.
pub(super) struct Server {
    daemon: Daemon,
    port: u16,
}

impl Server {
    /// Starts a server that has each answered write on its disk.
    pub(super) async fn start_durable() -> Result<Self> {
        Self::start(&["--appendonly", "yes", "--appendfsync", "always"]).await
    }

    /// Starts a server with the library. By default, it writes nothing to its disk.
    pub(super) async fn start(arguments: &[&str]) -> Result<Self> {
        let server = Self::run(arguments).await?;
        server.call::<()>(&["FUNCTION", "LOAD", LIBRARY]).await?;
        Ok(server)
    }

    /// Starts a replica of this server, and waits until it has all that this server has.
    pub(super) async fn start_replica(&self) -> Result<Self> {
        let replica = Self::run(&["--replicaof", &format!("127.0.0.1 {}", self.port)]).await?;
        eventually("the replica to be connected", PATIENCE, async || {
            let info: String = replica.call(&["INFO", "replication"]).await.ok()?;
            info.contains("master_link_status:up").then_some(())
        })
        .await?;
        Ok(replica)
    }

    /// Ends the replication from this primary. The replica keeps what it has.
    pub(super) async fn detach_from(&self, primary: &Self) -> Result<()> {
        self.call::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await?;
        eventually("the primary to be alone", PATIENCE, async || {
            let info: String = primary.call(&["INFO", "replication"]).await.ok()?;
            info.contains("connected_slaves:0").then_some(())
        })
        .await
    }

    /// Makes a replica a primary.
    pub(super) async fn promote(&self) -> Result<()> {
        self.call(&["REPLICAOF", "NO", "ONE"]).await
    }

    async fn run(arguments: &[&str]) -> Result<Self> {
        let port = own_port()?;
        let arguments: Vec<_> = arguments.iter().copied().map(str::to_owned).collect();
        let command = move |directory: &Path| Ok(command(directory, port, &arguments));
        let server = Self {
            daemon: Daemon::new(new_directory("redis")?, command),
            port,
        };
        server.restart().await?;
        Ok(server)
    }

    /// Starts it after a [`Self::kill`].
    pub(super) async fn restart(&self) -> Result<()> {
        // While it reads its file, it accepts connections, and answers no command.
        self.daemon
            .start(async || self.call::<String>(&["PING"]).await)
            .await
    }

    /// Kills it without a warning.
    pub(super) fn kill(&self) -> Result<()> {
        self.daemon.kill()
    }

    pub(super) async fn connect(&self) -> Result<MultiplexedConnection> {
        let client = Client::open(format!("unix://{}", self.socket().display()))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connected = client.get_multiplexed_async_connection_with_config(&config);
        Ok(connected.await?)
    }

    /// Runs one command, on a connection of its own.
    pub(super) async fn call<T: FromRedisValue>(&self, words: &[&str]) -> Result<T> {
        call(&mut self.connect().await?, words).await
    }

    pub(super) fn socket(&self) -> PathBuf {
        socket(self.daemon.directory())
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

fn command(directory: &Path, port: u16, arguments: &[String]) -> Command {
    // Valkey has the same arguments.
    let program = std::env::var_os("REDIS_SERVER").unwrap_or_else(|| "redis-server".into());
    let mut command = unprivileged(program);
    command
        .args(["--bind", "127.0.0.1", "--save", "", "--daemonize", "no"])
        .args(["--repl-diskless-sync-delay", "0"])
        .args(["--hash-max-listpack-entries", "10000"])
        .args(["--port", &port.to_string(), "--unixsocket"])
        .arg(socket(directory))
        .arg("--dir")
        .arg(directory)
        .args(arguments);
    command
}

/// Runs one command.
pub(super) async fn call<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    words: &[&str],
) -> Result<T> {
    let (name, arguments) = words.split_first().context("a command")?;
    Ok(cmd(name).arg(arguments).query_async(connection).await?)
}
