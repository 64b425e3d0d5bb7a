//! The fences of MariaDB, on Debian's server.

mod locks;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use sqlx::migrate::Migrator;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use sqlx::{ConnectOptions as _, Connection as _, Error, query, query_as};

use super::random::{run, run_with_violation};
use super::server::{Daemon, migrations, new_directory, output, unprivileged};
use super::store::{Append, Store, Written};
use super::story::{Story, stale_writer_is_refused};
use crate::history::Entry;

/// The tables that the fence guards.
const TABLES: &str = "
    CREATE TABLE entry (
        number BIGINT AUTO_INCREMENT PRIMARY KEY,
        token BIGINT NOT NULL,
        value VARCHAR(100) NOT NULL UNIQUE
    );
    CREATE TABLE report (
        id BIGINT PRIMARY KEY,
        entries LONGTEXT NOT NULL,
        fencing_token BIGINT NOT NULL DEFAULT 1
    );
    INSERT INTO report (id, entries) VALUES (1, '');
    CREATE TABLE body (text TEXT NOT NULL);
    INSERT INTO body VALUES ('empty');
    CREATE USER app@localhost;
    GRANT EXECUTE ON PROCEDURE app.leasehold_fence TO app@localhost;
    GRANT SELECT, INSERT ON app.entry TO app@localhost;
    GRANT SELECT, UPDATE ON app.report TO app@localhost;
    GRANT SELECT, UPDATE ON app.body TO app@localhost;";

/// How a writer passes the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `CALL leasehold_fence`.
    Procedure,
    /// The guard column of the row that is written.
    Column,
    /// Not at all.
    None,
}

/// A server, and the writers' form of the fence.
struct Fenced {
    daemon: Daemon,
    form: Form,
}

impl Fenced {
    /// Starts a server with the fence. Its users are `root`, who owns it, and `app`.
    async fn start(form: Form) -> Result<Self> {
        let directory = new_directory("mariadb")?;
        let mut install = program("mariadb-install-db", &directory);
        install.args([
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]);
        output(install.arg(data(&directory)))?;
        let daemon = Daemon::new(directory, |directory| Ok(command(directory)));
        let fenced = Self { daemon, form };
        fenced
            .daemon
            .start(async || fenced.connect_as("root", "mysql").await)
            .await?;
        let mut root = fenced.connect_as("root", "mysql").await?;
        sqlx::raw_sql("CREATE DATABASE app; USE app")
            .execute(&mut root)
            .await?;
        Migrator::new(migrations("mariadb"))
            .await?
            .run(&mut root)
            .await?;
        sqlx::raw_sql(TABLES).execute(&mut root).await?;
        Ok(fenced)
    }

    async fn connect_as(&self, user: &str, database: &str) -> Result<MySqlConnection> {
        let options = MySqlConnectOptions::new().username(user).database(database);
        let options = options
            .socket(socket(self.daemon.directory()))
            .disable_statement_logging();
        Ok(MySqlConnection::connect_with(&options).await?)
    }
}

fn data(directory: &Path) -> String {
    format!("--datadir={}", directory.join("data").display())
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("socket")
}

/// Returns a command with temporary files of its own: at its start, a server removes the temporary tables of all others
/// that share its folder.
fn program(name: &str, directory: &Path) -> Command {
    let mut command = unprivileged(name);
    command.env("TMPDIR", directory);
    command
}

fn command(directory: &Path) -> Command {
    let mut command = program("mariadbd", directory);
    command.args([
        "--no-defaults",
        "--skip-networking",
        "--innodb-buffer-pool-size=32M",
    ]);
    command
        .arg(data(directory))
        .arg(format!("--socket={}", socket(directory).display()));
    command
}

impl Store for Fenced {
    type Connection = MySqlConnection;

    async fn connect(&self) -> Result<MySqlConnection> {
        self.connect_as("app", "app").await
    }

    async fn append(&self, connection: &mut MySqlConnection, append: &Append) -> Result<Written> {
        query("START TRANSACTION").execute(&mut *connection).await?;
        let written = match self.form {
            Form::Procedure => append_by_procedure(connection, append).await?,
            Form::Column => append_by_column(connection, append).await?,
            Form::None => insert(connection, append).await?,
        };
        // The refusal does not end the transaction.
        let end = if written == Written::Stale {
            "ROLLBACK"
        } else {
            "COMMIT"
        };
        query(end).execute(connection).await?;
        Ok(written)
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        let mut connection = self.connect().await?;
        if self.form != Form::Column {
            let select = query_as("SELECT token, value FROM entry ORDER BY number");
            let rows: Vec<(i64, String)> = select.fetch_all(&mut connection).await?;
            let entry = |(token, value): (i64, String)| Entry {
                token: token.cast_unsigned(),
                value,
            };
            return Ok(rows.into_iter().map(entry).collect());
        }
        let select = query_as("SELECT entries FROM report");
        let (entries,): (String,) = select.fetch_one(&mut connection).await?;
        let entry = |line: &str| {
            let (token, value) = line.split_once(' ')?;
            Some(Entry {
                token: token.parse().ok()?,
                value: value.to_owned(),
            })
        };
        Ok(entries.lines().filter_map(entry).collect())
    }

    async fn crash(&self) -> Result<()> {
        self.daemon.kill()?;
        self.daemon.start(async || self.connect().await).await
    }
}

async fn append_by_procedure(connection: &mut MySqlConnection, append: &Append) -> Result<Written> {
    let fence = query("CALL leasehold_fence('log', ?)").bind(append.token);
    if let Err(error) = fence.execute(&mut *connection).await {
        return if is_stale(&error) {
            Ok(Written::Stale)
        } else {
            Err(error.into())
        };
    }
    insert(connection, append).await
}

async fn insert(connection: &mut MySqlConnection, append: &Append) -> Result<Written> {
    tokio::time::sleep(append.pause).await;
    let insert = query("INSERT IGNORE INTO entry (token, value) VALUES (?, ?)");
    insert
        .bind(append.token)
        .bind(&append.value)
        .execute(connection)
        .await?;
    Ok(Written::Accepted)
}

/// Whether the error is the fence's refusal.
fn is_stale(error: &Error) -> bool {
    let error = error.as_database_error();
    error.is_some_and(|error| error.message().contains("stale_fencing_token"))
}

async fn append_by_column(connection: &mut MySqlConnection, append: &Append) -> Result<Written> {
    let entry = format!("{} {}\n", append.token, append.value);
    let update = "UPDATE report
        SET entries = IF(LOCATE(?, entries), entries, CONCAT(entries, ?)), fencing_token = ?
        WHERE id = 1 AND fencing_token <= ?";
    let update = query(update).bind(&entry).bind(&entry);
    let updated = update
        .bind(append.token)
        .bind(append.token)
        .execute(connection)
        .await?;
    tokio::time::sleep(append.pause).await;
    let is_written = updated.rows_affected() == 1;
    Ok(if is_written {
        Written::Accepted
    } else {
        Written::Stale
    })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn no_older_token_passes_after_a_newer_one() -> Result<()> {
    run(&Fenced::start(Form::Procedure).await?, 3).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn guard_column_refuses_older_tokens() -> Result<()> {
    run(&Fenced::start(Form::Column).await?, 1).await?;
    Ok(())
}

/// The control: the same run without a fence has violations.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn run_without_fence_is_noticed() -> Result<()> {
    run_with_violation(&Fenced::start(Form::None).await?, 0, "back to token").await
}

/// The rights that docs/fencing.md gives to the app's user.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn app_cannot_lower_a_token() -> Result<()> {
    let fenced = Fenced::start(Form::Procedure).await?;
    let mut app = fenced.connect().await?;
    query("CALL leasehold_fence('report', 2000)")
        .execute(&mut app)
        .await?;
    for lower in [
        "UPDATE leasehold_fences SET token = 1",
        "DELETE FROM leasehold_fences",
    ] {
        let refused = query(lower).execute(&mut app).await.unwrap_err();
        assert!(refused.to_string().contains("denied"), "{refused}");
    }
    let stale = query("CALL leasehold_fence('report', 1000)")
        .execute(&mut app)
        .await;
    assert!(stale.is_err_and(|error| is_stale(&error)));
    query("SET check_constraint_checks = 0")
        .execute(&mut app)
        .await?;
    let stale = query("CALL leasehold_fence('report', 1000)")
        .execute(&mut app)
        .await;
    assert!(stale.is_err_and(|error| is_stale(&error)));
    // Another resource, also one that only a collation would find equal.
    query("CALL leasehold_fence('Report', 1000)")
        .execute(&mut app)
        .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn wrong_arguments_are_refused_in_each_mode() -> Result<()> {
    let fenced = Fenced::start(Form::Procedure).await?;
    let mut app = fenced.connect().await?;
    for mode in ["SET sql_mode = DEFAULT", "SET sql_mode = ''"] {
        query(mode).execute(&mut app).await?;
        for call in [
            "CALL leasehold_fence('report', 0)",
            "CALL leasehold_fence('report', -1)",
            "CALL leasehold_fence('report', 9007199254740992)",
            "CALL leasehold_fence('report', '1000 apples')",
            "CALL leasehold_fence('report', 10.7)",
            "CALL leasehold_fence('report', '1e2')",
            "CALL leasehold_fence('report', '')",
            "CALL leasehold_fence('report', NULL)",
            "CALL leasehold_fence(NULL, 1000)",
            "CALL leasehold_fence('', 1000)",
        ] {
            let refused = query(call).execute(&mut app).await;
            assert!(refused.is_err(), "{mode}: {call}");
        }
        let valid = query("CALL leasehold_fence('valid', 1000)");
        valid.execute(&mut app).await?;
    }
    let mut root = fenced.connect_as("root", "app").await?;
    let recorded =
        query_as("SELECT CONVERT(resource USING utf8mb4), token, passes FROM leasehold_fences");
    let recorded: Vec<(String, i64, u64)> = recorded.fetch_all(&mut root).await?;
    // Each pass changes the row, or the nodes of Galera would not compare it.
    assert_eq!(recorded, [("valid".to_owned(), 1000, 2)]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_worker_cannot_write() -> Result<()> {
    let fenced = Fenced::start(Form::Procedure).await?;
    let client = format!(
        "mariadb --no-defaults --skip-column-names --batch --user app --socket {} app",
        socket(fenced.daemon.directory()).display()
    );
    let write = |fence: &str| {
        format!(
            "{client} <<SQL\nSTART TRANSACTION;\n{fence}\nUPDATE body SET text = '$VALUE';\nCOMMIT;\nSQL"
        )
    };
    stale_writer_is_refused(&Story {
        prepare: "",
        fenced: write("CALL leasehold_fence('report', $TOKEN);"),
        unfenced: write(""),
        read: format!("{client} --execute 'SELECT text FROM body'"),
        refusal: "stale_fencing_token",
    })
    .await
}
