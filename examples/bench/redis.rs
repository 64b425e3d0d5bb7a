//! Redis, with the lock that its documentation describes for one instance: `SET NX PX` with a
//! random value, and a script that deletes the key if it still has that value. It uses Debian's
//! server on a Unix socket, and implements only the part of RESP that this needs.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

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
    connection: Connection,
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
        let connected = eventually("a connection to Redis", LIMIT, async || {
            Connection::to(&socket).await.ok()
        });
        let mut connection = connected
            .await
            .map_err(|error| error.context(process.last_words()))?;
        let release = connection.call(&["SCRIPT", "LOAD", RELEASE]).await?;
        Ok(Self {
            connection,
            release,
            _process: process,
        })
    }

    /// Acquires a free lock and releases it.
    pub(crate) async fn lock_and_unlock(&mut self) -> Result<()> {
        let value = uuid::Uuid::new_v4().to_string();
        let set = ["SET", "bench:lock", &value, "NX", "PX", "15000"];
        let taken = self.connection.call(&set).await?;
        ensure!(taken == "OK", "the lock is not free: {taken}");
        let delete = ["EVALSHA", &self.release, "1", "bench:lock", &value];
        let freed = self.connection.call(&delete).await?;
        ensure!(freed == "1", "another client had the lock: {freed}");
        Ok(())
    }
}

struct Connection(BufReader<UnixStream>);

impl Connection {
    async fn to(socket: &PathBuf) -> Result<Self> {
        Ok(Self(BufReader::new(UnixStream::connect(socket).await?)))
    }

    /// Sends a command, and returns its answer as text: a simple string, a number or a bulk string.
    /// No command here has an array as its answer.
    async fn call(&mut self, words: &[&str]) -> Result<String> {
        let mut request = vec![format!("*{}\r\n", words.len())];
        request.extend(
            words
                .iter()
                .map(|word| format!("${}\r\n{word}\r\n", word.len())),
        );
        self.0.write_all(request.concat().as_bytes()).await?;
        let mut line = String::new();
        self.0.read_line(&mut line).await?;
        let line = line.trim_end();
        let kind = line.chars().next().context("Redis closed the connection")?;
        let said = &line[1..];
        match kind {
            '+' | ':' => Ok(said.to_owned()),
            '$' if said == "-1" => Ok("nothing".to_owned()),
            '$' => {
                let mut bulk = vec![0; said.parse::<usize>()? + 2];
                self.0.read_exact(&mut bulk).await?;
                bulk.truncate(bulk.len() - 2);
                Ok(String::from_utf8(bulk)?)
            }
            _ => bail!("Redis answered {line:?} to {}", words[0]),
        }
    }
}
