//! The fence of Redis, as a script and as a function of its library, on Debian's server. `REDIS_SERVER=PATH` tries the
//! server of Valkey.

mod failover;
mod losses;
mod refusals;
mod server;

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value, cmd};

use super::random::{run, run_with_violation};
use super::store::{Append, Store, Written};
use super::story::{Story, stale_writer_is_refused};
use crate::history::Entry;
use server::{Server, call};

const SCRIPT: &str = include_str!("../../../fences/redis/fence.lua");
/// The log of the random writers, and its fence.
const KEYS: [&str; 2] = ["{log}:fence", "{log}:entries"];

/// How a writer passes the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Script,
    Function,
}

impl Form {
    const ALL: [Self; 2] = [Self::Script, Self::Function];

    /// Passes the fence with a token and a command.
    async fn call(
        self,
        connection: &mut MultiplexedConnection,
        keys: &[&str],
        arguments: &[&str],
    ) -> Result<Value, RedisError> {
        let mut command = match self {
            Self::Script => cmd("EVAL"),
            Self::Function => cmd("FCALL"),
        };
        command.arg(match self {
            Self::Script => SCRIPT,
            Self::Function => "leasehold_fence",
        });
        let command = command.arg(keys.len()).arg(keys).arg(arguments);
        command.query_async(connection).await
    }
}

/// Sets `{log}:body` with a token, or returns the refusal.
async fn set(
    connection: &mut MultiplexedConnection,
    token: u64,
    body: &str,
) -> Result<(), RedisError> {
    let keys = ["{log}:fence", "{log}:body"];
    let arguments = [&token.to_string(), "SET", keys[1], body];
    let set = Form::Script.call(connection, &keys, &arguments).await;
    set.map(drop)
}

fn is_stale(error: &RedisError) -> bool {
    error.code() == Some("STALETOKEN")
}

/// Appends an entry to the log, and passes the fence. The fence runs one command, and a repeated `RPUSH`
/// would append twice. So the log is a hash; a listpack keeps the order of insertion.
async fn push(
    connection: &mut MultiplexedConnection,
    form: Form,
    append: &Append,
) -> Result<Written> {
    let token = append.token.to_string();
    let arguments = [&token, "HSETNX", KEYS[1], &append.value, &token];
    match form.call(connection, &KEYS, &arguments).await {
        Ok(_is_new) => Ok(Written::Accepted),
        Err(error) if is_stale(&error) => Ok(Written::Stale),
        Err(error) => Err(error.into()),
    }
}

/// Returns the log of a server.
async fn entries(server: &Server) -> Result<Vec<Entry>> {
    let encoding: String = server.call(&["OBJECT", "ENCODING", KEYS[1]]).await?;
    ensure!(encoding == "listpack", "{encoding} has no order");
    let entries: Vec<(String, u64)> = server.call(&["HGETALL", KEYS[1]]).await?;
    let entry = |(value, token)| Entry { token, value };
    Ok(entries.into_iter().map(entry).collect())
}

/// A server, and the writers' form of the fence. Without one, they do not pass it.
struct Fenced {
    server: Server,
    form: Option<Form>,
}

impl Fenced {
    async fn start(form: Option<Form>) -> Result<Self> {
        let server = Server::start_durable().await?;
        Ok(Self { server, form })
    }
}

impl Store for Fenced {
    type Connection = MultiplexedConnection;

    async fn connect(&self) -> Result<MultiplexedConnection> {
        self.server.connect().await
    }

    async fn append(
        &self,
        connection: &mut MultiplexedConnection,
        append: &Append,
    ) -> Result<Written> {
        tokio::time::sleep(append.pause).await;
        if let Some(form) = self.form {
            return push(connection, form, append).await;
        }
        let token = append.token.to_string();
        call::<bool>(connection, &["HSETNX", KEYS[1], &append.value, &token]).await?;
        Ok(Written::Accepted)
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        entries(&self.server).await
    }

    async fn crash(&self) -> Result<()> {
        self.server.kill()?;
        self.server.restart().await
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn no_older_token_passes_script_after_a_newer_one() -> Result<()> {
    run(&Fenced::start(Some(Form::Script)).await?, 4).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn no_older_token_passes_function_after_a_newer_one() -> Result<()> {
    run(&Fenced::start(Some(Form::Function)).await?, 4).await?;
    Ok(())
}

/// The control: the same run without a fence has violations.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn run_without_fence_is_noticed() -> Result<()> {
    run_with_violation(&Fenced::start(None).await?, 0, "back to token").await
}

/// Without its file, each crash loses the log and its fence.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn crash_without_append_only_file_is_noticed() -> Result<()> {
    let server = Server::start(&[]).await?;
    let form = Some(Form::Script);
    run_with_violation(&Fenced { server, form }, 1, "an entry 0 times").await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_worker_cannot_write() -> Result<()> {
    let server = Server::start_durable().await?;
    let cli = format!("redis-cli -e -s {}", server.socket().display());
    let fence = "FCALL leasehold_fence 2 {report}:fence {report}:body \"$TOKEN\"";
    let set = "SET {report}:body \"$VALUE\"";
    stale_writer_is_refused(&Story {
        prepare: "",
        fenced: format!("{cli} {fence} {set}"),
        unfenced: format!("{cli} {set}"),
        read: format!("{cli} GET {{report}}:body"),
        refusal: "STALETOKEN stale fencing token",
    })
    .await
}
