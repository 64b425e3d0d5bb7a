//! What docs/fencing.md says that Redis may lose, and what keeps it.

use std::time::Duration;

use anyhow::ensure;

use super::*;
use crate::harness::{PATIENCE, eventually};

/// Requires that a token passes, or that it is refused as stale.
async fn expect(server: &Server, token: u64, passes: bool) -> Result<()> {
    let answer = set(&mut server.connect().await?, token, "checked").await;
    match answer {
        Ok(()) => ensure!(passes, "{token} passed"),
        Err(error) if is_stale(&error) => ensure!(!passes, "{error}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn crash_with_append_only_file_loses_no_token() -> Result<()> {
    let server = Server::start_durable().await?;
    set(&mut server.connect().await?, 2000, "new").await?;
    server.kill()?;
    server.restart().await?;
    expect(&server, 1000, false).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn crash_without_append_only_file_forgets_tokens() -> Result<()> {
    let server = Server::start(&[]).await?;
    set(&mut server.connect().await?, 1000, "old").await?;
    server.call::<()>(&["SAVE"]).await?;
    set(&mut server.connect().await?, 2000, "new").await?;
    server.kill()?;
    server.restart().await?;
    expect(&server, 999, false).await?;
    expect(&server, 1000, true).await
}

/// Makes the replica the primary after the primary got a token that the replica does not have.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn failover_can_lose_the_newest_token() -> Result<()> {
    let primary = Server::start_durable().await?;
    let replica = primary.start_replica().await?;
    let mut connection = primary.connect().await?;
    set(&mut connection, 1000, "old").await?;
    assert_eq!(wait_for_replica(&mut connection, PATIENCE).await?, 1);
    replica.detach_from(&primary).await?;
    set(&mut connection, 2000, "new").await?;
    let waited = wait_for_replica(&mut connection, Duration::from_millis(100)).await?;
    assert_eq!(waited, 0, "the writer can know");
    primary.kill()?;
    replica.promote().await?;
    expect(&replica, 999, false).await?;
    expect(&replica, 1000, true).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn failover_keeps_token_that_the_writer_waited_for() -> Result<()> {
    let primary = Server::start_durable().await?;
    let replica = primary.start_replica().await?;
    let mut connection = primary.connect().await?;
    for token in (1000..2000).step_by(100) {
        set(&mut connection, token, "new").await?;
    }
    assert_eq!(wait_for_replica(&mut connection, PATIENCE).await?, 1);
    primary.kill()?;
    replica.promote().await?;
    expect(&replica, 1899, false).await?;
    expect(&replica, 1900, true).await
}

/// Returns how many replicas have what this connection wrote.
pub(super) async fn wait_for_replica(
    connection: &mut MultiplexedConnection,
    limit: Duration,
) -> Result<u64> {
    let limit = limit.as_millis().to_string();
    call(connection, &["WAIT", "1", &limit]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn replica_does_not_pass_the_fence() -> Result<()> {
    let primary = Server::start_durable().await?;
    let replica = primary.start_replica().await?;
    let newer = set(&mut replica.connect().await?, 2000, "new").await;
    let refused = newer.unwrap_err();
    assert_eq!(refused.code(), Some("READONLY"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn eviction_of_all_keys_can_forget_a_token() -> Result<()> {
    let limits = ["--maxmemory", "8mb", "--maxmemory-policy"];
    let server = Server::start(&[&limits[..], &["allkeys-random"]].concat()).await?;
    set(&mut server.connect().await?, 2000, "new").await?;
    eventually("the eviction of the fence", PATIENCE, async || {
        fill(&server, &[]).await.ok()?;
        let exists: u64 = server.call(&["EXISTS", "{log}:fence"]).await.ok()?;
        (exists == 0).then_some(())
    })
    .await?;
    expect(&server, 1000, true).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn eviction_of_keys_that_expire_keeps_the_token() -> Result<()> {
    let limits = ["--maxmemory", "8mb", "--maxmemory-policy"];
    let server = Server::start(&[&limits[..], &["volatile-random"]].concat()).await?;
    set(&mut server.connect().await?, 2000, "new").await?;
    for _ in 0..3 {
        fill(&server, &["EX", "1000"]).await?;
    }
    let stats: String = server.call(&["INFO", "stats"]).await?;
    ensure!(!stats.contains("evicted_keys:0\r"), "{stats}");
    expect(&server, 1000, false).await
}

/// Sets keys of 10 MB in all.
async fn fill(server: &Server, options: &[&str]) -> Result<()> {
    let mut connection = server.connect().await?;
    let value = "x".repeat(10_000);
    for number in 0..1000 {
        let key = format!("other-{number}");
        let set = [&["SET", &key, &value], options].concat();
        call::<()>(&mut connection, &set).await?;
    }
    Ok(())
}

/// `MULTI` does not stop after an error, so a write beside the fence is not fenced. Two writes that both pass it are.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn each_command_of_a_transaction_must_pass() -> Result<()> {
    let server = Server::start(&[]).await?;
    let mut connection = server.connect().await?;
    set(&mut connection, 2000, "new").await?;
    let fence = ["FCALL", "leasehold_fence", "2"];
    let keys = ["{log}:fence", "{log}:body"];
    let fenced = |token, command: &[&'static str]| [&fence[..], &keys, &[token], command].concat();
    let write = ["SET", "{log}:body", "stale"];
    let more = ["APPEND", "{log}:body", "er"];

    let both = [fenced("1000", &write), fenced("1000", &more)];
    transaction(&mut connection, &both).await?;
    assert_eq!(body(&mut connection).await?, "new");
    let both = [fenced("2000", &more), fenced("2000", &more)];
    transaction(&mut connection, &both).await?;
    assert_eq!(body(&mut connection).await?, "newerer");
    let beside = [fenced("1000", &["GET", "{log}:body"]), write.to_vec()];
    transaction(&mut connection, &beside).await?;
    assert_eq!(body(&mut connection).await?, "stale");
    Ok(())
}

/// Runs commands between `MULTI` and `EXEC`. Their errors are in the answer of `EXEC`.
async fn transaction(connection: &mut MultiplexedConnection, commands: &[Vec<&str>]) -> Result<()> {
    call::<()>(connection, &["MULTI"]).await?;
    for command in commands {
        call::<()>(connection, command).await?;
    }
    // The client may report the first error of the answers, or return them.
    let _answers = call::<Value>(connection, &["EXEC"]).await;
    Ok(())
}

async fn body(connection: &mut MultiplexedConnection) -> Result<String> {
    call(connection, &["GET", "{log}:body"]).await
}
