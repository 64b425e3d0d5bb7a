//! Outcomes that a writer does not learn: a commit without an answer, and a prepared transaction.

use anyhow::Result;
use sqlx::{query, query_scalar};

use super::super::store::Written;
use super::server::Server;
use super::*;
use crate::harness::{PATIENCE, Process, directory, eventually};

/// Returns how many entries have this value.
async fn count(server: &Server, value: &str) -> Result<i64> {
    let count = query_scalar("SELECT count(*) FROM entry WHERE value = $1").bind(value);
    Ok(count.fetch_one(&mut server.connect().await?).await?)
}

fn append(token: u64, value: &str) -> Append {
    Append {
        token,
        value: value.to_owned(),
        pause: std::time::Duration::ZERO,
    }
}

/// The primary is killed between the write-ahead log and the answer. The writer repeats its transaction with the same
/// token, until another one has a newer one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn commit_without_answer_can_be_repeated() -> Result<()> {
    let fenced = Fenced::start(Form::Function).await?;
    let server = &fenced.server;
    // One message: its answer is sent at the end, after the sleep.
    let statements = "BEGIN; SELECT leasehold.fence('log', 1000); \
        INSERT INTO entry (token, value) VALUES (1000, 'a'); COMMIT; SELECT pg_sleep(600)";
    let mut psql = Command::new("psql");
    psql.args([
        "-X",
        "-h",
        &server.host(),
        "-U",
        "postgres",
        "-c",
        statements,
    ]);
    let psql = Process::spawn("psql", &mut psql, &directory()?.join("unanswered"))?;
    eventually("the commit", PATIENCE, async || {
        let committed = count(server, "a").await.ok()? == 1;
        committed.then_some(())
    })
    .await?;
    server.kill()?;
    assert!(!psql.wait(PATIENCE).await?.success(), "{}", psql.log());
    assert!(!psql.log().contains("COMMIT"), "an answer: {}", psql.log());
    server.restart().await?;

    let mut connection = server.connect().await?;
    let repeated = fenced.append(&mut connection, &append(1000, "a")).await?;
    assert_eq!(repeated, Written::Accepted);
    assert_eq!(count(server, "a").await?, 1);
    assert_eq!(
        fenced.append(&mut connection, &append(2000, "b")).await?,
        Written::Accepted
    );
    assert_eq!(
        fenced.append(&mut connection, &append(1000, "c")).await?,
        Written::Stale
    );
    Ok(())
}

/// A prepared transaction (two-phase commit) keeps the fence over a crash, until it is committed or rolled back.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn prepared_transaction_keeps_the_fence_over_a_crash() -> Result<()> {
    let fenced = Fenced::start(Form::Function).await?;
    let server = &fenced.server;
    let prepare = "BEGIN; SELECT leasehold.fence('log', 1000);
        INSERT INTO entry (token, value) VALUES (1000, 'a'); PREPARE TRANSACTION 'a'";
    server.execute(prepare).await?;
    server.kill()?;
    server.restart().await?;

    let mut newer = server.connect().await?;
    query("SET lock_timeout = '100ms'")
        .execute(&mut newer)
        .await?;
    query("BEGIN").execute(&mut newer).await?;
    let waited = fence(&mut newer, 2000).await.unwrap_err();
    assert_eq!(code(&waited).as_deref(), Some("55P03"), "{waited}");
    query("ROLLBACK").execute(&mut newer).await?;

    server.execute("COMMIT PREPARED 'a'").await?;
    assert_eq!(
        fenced.append(&mut newer, &append(2000, "b")).await?,
        Written::Accepted
    );
    assert_eq!(count(server, "a").await?, 1);
    Ok(())
}
