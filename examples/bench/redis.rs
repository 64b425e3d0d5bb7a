//! Redis, with the lock that its documentation describes for one instance: `SET NX PX` with a
//! random value, and a script that deletes the key if it still has that value. It uses Debian's
//! server on a Unix socket.

use std::process::Command;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, cmd};
use anyhow::{Result, ensure};

use crate::harness::{Process, directory, eventually};

const BINARY: &str = "redis-server";
/// The limit for the start of the server.
const LIMIT: Duration = Duration::from_secs(20);
const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then \
     return redis.call('del', KEYS[1]) else return 0 end";

/// Whether a write is on the disk before it is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// `appendonly yes`, `appendfsync always`.
    Always,
    /// Nothing is ever written.
    None,
}

/// A running server and one connection to it. Dropping it kills the server.
pub(crate) struct Redis {
    connection: MultiplexedConnection,
    release: String,
    _process: Process,
}

/// Whether the server is installed.
pub(crate) fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(BINARY).is_file())
}

impl Redis {
    pub(crate) async fn start(persistence: Persistence) -> Result<Self> {
        let (name, append) = match persistence {
            Persistence::Always => ("redis-always", "yes"),
            Persistence::None => ("redis-none", "no"),
        };
        let directory = directory()?.join(name);
        std::fs::create_dir(&directory)?;
        let socket = directory.join("redis.sock");
        let mut command = Command::new(BINARY);
        command
            .args(["--port", "0", "--save", "", "--daemonize", "no"])
            .args(["--appendonly", append, "--appendfsync", "always"])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(&directory);
        let process = Process::spawn(name, &mut command, &directory.join("log"))?;
        let client = Client::open(format!("redis+unix://{}", socket.display()))?;
        let connected = eventually("a connection to Redis", LIMIT, async || {
            client.get_multiplexed_async_connection().await.ok()
        });
        let mut connection = connected
            .await
            .map_err(|error| error.context(process.last_words()))?;
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(RELEASE);
        let release = load.query_async(&mut connection).await?;
        Ok(Self {
            connection,
            release,
            _process: process,
        })
    }

    /// Acquires a free lock and releases it.
    pub(crate) async fn lock_and_unlock(&mut self) -> Result<()> {
        let value = uuid::Uuid::new_v4().to_string();
        let mut set = cmd("SET");
        set.arg("bench:lock")
            .arg(&value)
            .arg("NX")
            .arg("PX")
            .arg(15_000);
        let taken: Option<String> = set.query_async(&mut self.connection).await?;
        ensure!(taken.as_deref() == Some("OK"), "the lock is not free");
        let mut delete = cmd("EVALSHA");
        delete
            .arg(&self.release)
            .arg(1)
            .arg("bench:lock")
            .arg(&value);
        let freed: u64 = delete.query_async(&mut self.connection).await?;
        ensure!(freed == 1, "another client had the lock");
        Ok(())
    }
}
