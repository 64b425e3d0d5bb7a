//! The fence of SQLite. Each writer is a process of its own, as workers are that share a file.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Result, ensure};
use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, query, query_as};
use tokio::io::AsyncWriteExt as _;

use super::random::{run, run_with_violation};
use super::server::{migrations, new_directory, output};
use super::store::{Append, Store, Written};
use super::story::{Story, stale_writer_is_refused};
use crate::history::Entry;

const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE entry (number INTEGER PRIMARY KEY, token INTEGER NOT NULL, value TEXT NOT NULL UNIQUE);
    CREATE TABLE report (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
    INSERT INTO report VALUES (1, '');
    CREATE TABLE body (text TEXT NOT NULL);
    INSERT INTO body VALUES ('empty');";

/// The guard column of docs/fencing-sql.md.
const COLUMN: &str = "ALTER TABLE report ADD COLUMN fencing_token bigint NOT NULL DEFAULT 1 \
    CHECK (typeof(fencing_token) = 'integer');";

/// How a writer passes the fence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The view `leasehold_fence`.
    View,
    /// The guard column of the row that is written.
    Column,
    /// Not at all.
    None,
}

/// A database, and the writers' form of the fence.
struct Fenced {
    file: PathBuf,
    form: Form,
}

impl Fenced {
    async fn create(form: Form) -> Result<Self> {
        let fenced = Self {
            file: new_directory("sqlite")?.join("db"),
            form,
        };
        let mut connection = fenced.open().await?;
        Migrator::new(migrations("sqlite"))
            .await?
            .run(&mut connection)
            .await?;
        sqlx::raw_sql(TABLES).execute(&mut connection).await?;
        sqlx::raw_sql(COLUMN).execute(&mut connection).await?;
        Ok(fenced)
    }

    async fn open(&self) -> Result<SqliteConnection> {
        let options = SqliteConnectOptions::new().filename(&self.file);
        let options = options.create_if_missing(true);
        Ok(SqliteConnection::connect_with(&options).await?)
    }

    /// Returns what a writer sends before its pause, and after it.
    fn transaction(&self, append: &Append) -> (String, String) {
        let (token, value) = (append.token, &append.value);
        let insert = format!(
            "INSERT INTO entry (token, value) VALUES ({token}, '{value}') \
             ON CONFLICT (value) DO NOTHING; COMMIT;\n"
        );
        let (begin, end) = match self.form {
            Form::View => {
                let fence = format!("INSERT INTO leasehold_fence VALUES ('log', {token});\n");
                (format!("BEGIN IMMEDIATE;\n{fence}"), insert)
            }
            Form::Column => {
                let entry = format!("'{token}|{value}' || char(10)");
                let update = format!(
                    "UPDATE report SET fencing_token = {token},
                        body = iif(instr(body, {entry}), body, body || {entry})
                    WHERE id = 1 AND fencing_token <= {token};"
                );
                let stale = "SELECT 'no row was updated' WHERE changes() = 0;\n";
                (format!("BEGIN;{update}{stale}"), "COMMIT;\n".to_owned())
            }
            Form::None => (String::new(), format!("BEGIN;{insert}")),
        };
        (format!(".timeout 60000\n{begin}"), end)
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
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut sqlite = command.spawn()?;
        let mut input = sqlite.stdin.take().expect("the input must be a pipe");
        let (begin, end) = self.transaction(append);
        input.write_all(begin.as_bytes()).await?;
        tokio::time::sleep(append.pause).await;
        // A process that was refused reads no more: its error says why.
        let _sent = input.write_all(end.as_bytes()).await;
        drop(input);
        let ended = sqlite.wait_with_output().await?;
        let printed = String::from_utf8_lossy(&ended.stdout);
        let error = String::from_utf8_lossy(&ended.stderr);
        if error.contains("stale fencing token") || printed.contains("no row was updated") {
            return Ok(Written::Stale);
        }
        ensure!(ended.status.success(), "{error}");
        Ok(Written::Accepted)
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        let select = match self.form {
            Form::Column => "SELECT body FROM report",
            Form::View | Form::None => "SELECT token, value FROM entry ORDER BY number",
        };
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
    run(&Fenced::create(Form::View).await?, 3).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn guard_column_refuses_older_tokens() -> Result<()> {
    run(&Fenced::create(Form::Column).await?, 1).await?;
    Ok(())
}

/// The control: the same run without a fence has violations.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn run_without_fence_is_noticed() -> Result<()> {
    run_with_violation(&Fenced::create(Form::None).await?, 0, "back to token").await
}

/// Text is larger than every number, so a text as the token would refuse all writers. With `<` each token writes once.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn guard_column_accepts_no_text_and_no_older_token() -> Result<()> {
    const REFUSED: Option<u64> = None;
    let fenced = Fenced::create(Form::Column).await?;
    let mut connection = fenced.open().await?;
    for (operator, token, updated) in [
        ("<=", "0", Some(0)),
        ("<=", "1000", Some(1)),
        ("<=", "1000", Some(1)),
        ("<=", "999", Some(0)),
        ("<=", "'text'", REFUSED),
        ("<=", "1000.5", REFUSED),
        ("<=", "1001", Some(1)),
        ("<=", "1000", Some(0)),
        ("<", "2000", Some(1)),
        ("<", "2000", Some(0)),
        ("<", "2001", Some(1)),
    ] {
        let update = format!(
            "UPDATE report SET body = 'new', fencing_token = {token} \
             WHERE id = 1 AND fencing_token {operator} {token}"
        );
        let outcome = query(AssertSqlSafe(update)).execute(&mut connection).await;
        match outcome {
            Ok(done) => assert_eq!(Some(done.rows_affected()), updated, "{operator} {token}"),
            Err(error) => {
                assert_eq!(updated, REFUSED, "{token}: {error}");
                assert!(error.to_string().contains("CHECK"), "{token}: {error}");
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn wrong_values_and_stale_tokens_are_refused_in_each_form() -> Result<()> {
    let fenced = Fenced::create(Form::View).await?;
    let mut connection = fenced.open().await?;
    // Drivers of JavaScript send each number as REAL.
    for newest in ["1000.0", "2000", "2000.0", "'2000'"] {
        let newest = format!("INSERT INTO leasehold_fence VALUES ('report', {newest})");
        query(AssertSqlSafe(newest))
            .execute(&mut connection)
            .await?;
    }
    // Each form of INSERT treats the errors of constraints differently.
    for insert in ["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE", "REPLACE"] {
        for values in [
            "'report', 1999",
            "'report', 0",
            "'report', -1",
            "'report', 9007199254740992",
            "'report', 2000.5",
            "'report', 1999.0",
            "'report', 9e15 + 1e14",
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
    let fenced = Fenced::create(Form::View).await?;
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
