//! The fence of SQLite. Each writer is a process of its own, as workers are that share a file.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, query, query_as};
use tokio::io::AsyncWriteExt as _;

use super::random::run;
use super::server::{migrations, new_directory, output};
use super::store::{Append, Store, Written};
use super::story::{Story, stale_writer_is_refused};
use crate::history::Entry;

const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE entry (number INTEGER PRIMARY KEY, token INTEGER NOT NULL, value TEXT NOT NULL UNIQUE);
    CREATE TABLE body (text TEXT NOT NULL);
    INSERT INTO body VALUES ('empty');";

/// A database with the fence.
struct Fenced {
    file: PathBuf,
}

impl Fenced {
    async fn create() -> Result<Self> {
        let fenced = Self {
            file: new_directory("sqlite")?.join("db"),
        };
        let mut connection = fenced.open().await?;
        Migrator::new(migrations("sqlite"))
            .await?
            .run(&mut connection)
            .await?;
        sqlx::raw_sql(TABLES).execute(&mut connection).await?;
        Ok(fenced)
    }

    async fn open(&self) -> Result<SqliteConnection> {
        let options = SqliteConnectOptions::new().filename(&self.file);
        let options = options.create_if_missing(true);
        Ok(SqliteConnection::connect_with(&options).await?)
    }
}

impl Store for Fenced {
    type Connection = ();

    async fn connect(&self) -> Result<()> {
        Ok(())
    }

    /// Runs the transaction in a process, which is killed if this future is dropped.
    async fn append(&self, _connection: &mut (), append: &Append) -> Result<Written> {
        let mut command = tokio::process::Command::new("sqlite3");
        command.arg("-bail").arg(&self.file).kill_on_drop(true);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut sqlite = command.spawn()?;
        let mut input = sqlite.stdin.take().expect("the input must be a pipe");
        let (token, value) = (append.token, &append.value);
        let fence = format!(
            ".timeout 60000\nBEGIN IMMEDIATE;\n\
             INSERT INTO leasehold_fence VALUES ('log', {token});\n"
        );
        input.write_all(fence.as_bytes()).await?;
        tokio::time::sleep(append.pause).await;
        let write = format!(
            "INSERT INTO entry (token, value) VALUES ({token}, '{value}') \
             ON CONFLICT (value) DO NOTHING; COMMIT;\n"
        );
        // A process that was refused reads no more: its error says why.
        let _sent = input.write_all(write.as_bytes()).await;
        drop(input);
        let ended = sqlite.wait_with_output().await?;
        let error = String::from_utf8_lossy(&ended.stderr);
        match (
            ended.status.success(),
            error.contains("stale fencing token"),
        ) {
            (true, _) => Ok(Written::Accepted),
            (false, true) => Ok(Written::Stale),
            (false, false) => bail!("{error}"),
        }
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        let select = "SELECT token, value FROM entry ORDER BY number";
        let mut sqlite = Command::new("sqlite3");
        // A process that was just killed may still lock the file.
        sqlite.args(["-cmd", ".timeout 60000"]).arg(&self.file);
        let rows = output(sqlite.arg(select))?;
        let entry = |row: &str| {
            let (token, value) = row.split_once('|')?;
            Some(Entry {
                token: token.parse().ok()?,
                value: value.to_owned(),
            })
        };
        Ok(rows.lines().filter_map(entry).collect())
    }

    /// Without a server, only writers crash: the run drops them in the middle of their transactions.
    async fn crash(&self) -> Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn no_older_token_passes_after_a_newer_one() -> Result<()> {
    run(&Fenced::create().await?, 3).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn wrong_values_and_stale_tokens_are_refused_in_each_form() -> Result<()> {
    let fenced = Fenced::create().await?;
    let mut connection = fenced.open().await?;
    let newest = "INSERT INTO leasehold_fence VALUES ('report', 2000)";
    query(newest).execute(&mut connection).await?;
    // Each form of INSERT treats the errors of constraints differently.
    for insert in ["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE", "REPLACE"] {
        for values in [
            "'report', 1999",
            "'report', 0",
            "'report', -1",
            "'report', 9007199254740992",
            "'report', 2000.5",
            "'report', '2e3'",
            "'report', ''",
            "'report', NULL",
            "NULL, 2000",
            "'', 2000",
        ] {
            let statement = format!("{insert} INTO leasehold_fence VALUES ({values})");
            let refused = query(AssertSqlSafe(statement.clone()));
            let refused = refused.execute(&mut connection).await;
            assert!(refused.is_err(), "{statement}");
        }
    }
    let recorded = query_as("SELECT * FROM leasehold_fences");
    let recorded: Vec<(String, i64)> = recorded.fetch_all(&mut connection).await?;
    assert_eq!(recorded, [("report".to_owned(), 2000)]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_worker_cannot_write() -> Result<()> {
    let fenced = Fenced::create().await?;
    let file = fenced.file.display();
    let write = |fence: &str| {
        format!(
            "sqlite3 -bail {file} <<SQL\n.timeout 5000\nBEGIN IMMEDIATE;\n{fence}\n\
             UPDATE body SET text = '$VALUE';\nCOMMIT;\nSQL"
        )
    };
    stale_writer_is_refused(&Story {
        prepare: "",
        fenced: write("INSERT INTO leasehold_fence VALUES ('report', $TOKEN);"),
        unfenced: write(""),
        read: format!("sqlite3 {file} 'SELECT text FROM body'"),
        refusal: "stale fencing token",
    })
    .await
}
