//! The fences of PostgreSQL, on Debian's server.

mod failover;
mod isolation;
mod locks;
mod rights;
mod server;
mod unknown;

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnection;
use sqlx::{Error, query, query_as};

use super::random::{run, run_with_violation};
use super::server::migrations;
use super::store::{Append, Store, Written};
use super::story::{Story, stale_writer_is_refused};
use crate::history::Entry;
use server::Server;

/// How a writer passes the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `leasehold.fence` at the beginning of a transaction, and a trigger that requires it.
    Function,
    /// `leasehold.fence` as a condition of the statement that writes, and the trigger.
    Condition,
    /// The guard column of the row that is written.
    Column,
    /// Not at all.
    None,
}

/// A server, and the writers' form of the fence.
struct Fenced {
    server: Server,
    form: Form,
}

impl Fenced {
    async fn start(form: Form) -> Result<Self> {
        let server = Server::start().await?;
        let trigger = match form {
            Form::Function => {
                "CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON entry
                FOR EACH STATEMENT EXECUTE FUNCTION leasehold.require_fence('log')"
            }
            Form::Condition => {
                "CREATE TRIGGER fenced AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON entry
                FOR EACH STATEMENT EXECUTE FUNCTION leasehold.require_fence('log')"
            }
            Form::Column | Form::None => "",
        };
        server.execute(trigger).await?;
        Ok(Self { server, form })
    }
}

impl Store for Fenced {
    type Connection = PgConnection;

    async fn connect(&self) -> Result<PgConnection> {
        self.server.connect().await
    }

    async fn append(&self, connection: &mut PgConnection, append: &Append) -> Result<Written> {
        match self.form {
            Form::Function => append_by_function(connection, append).await,
            Form::Condition => append_in_condition(connection, append).await,
            Form::Column => append_by_column(connection, append).await,
            Form::None => {
                tokio::time::sleep(append.pause).await;
                insert(connection, append).await?;
                Ok(Written::Accepted)
            }
        }
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        let mut connection = self.connect().await?;
        entries(&mut connection, self.form).await
    }

    async fn crash(&self) -> Result<()> {
        self.server.kill()?;
        self.server.restart().await
    }
}

async fn append_by_function(connection: &mut PgConnection, append: &Append) -> Result<Written> {
    query("BEGIN").execute(&mut *connection).await?;
    if let Err(error) = fence(connection, append.token).await {
        query("ROLLBACK").execute(&mut *connection).await?;
        return if is_stale(&error) {
            Ok(Written::Stale)
        } else {
            Err(error.into())
        };
    }
    tokio::time::sleep(append.pause).await;
    insert(connection, append).await?;
    query("COMMIT").execute(connection).await?;
    Ok(Written::Accepted)
}

async fn append_in_condition(connection: &mut PgConnection, append: &Append) -> Result<Written> {
    let insert =
        "INSERT INTO entry (token, value) SELECT $1, $2 WHERE (SELECT leasehold.fence('log', $1))
        ON CONFLICT (value) DO NOTHING RETURNING pg_sleep($3)";
    let insert = query(insert)
        .bind(append.token.cast_signed())
        .bind(&append.value)
        .bind(append.pause.as_secs_f64());
    match insert.execute(connection).await {
        Ok(_) => Ok(Written::Accepted),
        Err(error) if is_stale(&error) => Ok(Written::Stale),
        Err(error) => Err(error.into()),
    }
}

async fn fence(connection: &mut PgConnection, token: u64) -> Result<(), Error> {
    let fence = query("SELECT leasehold.fence('log', $1)").bind(token.cast_signed());
    fence.execute(connection).await.map(drop)
}

/// Returns the SQLSTATE of an error.
fn code(error: &Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// Whether the error is the fence's refusal.
fn is_stale(error: &Error) -> bool {
    code(error).as_deref() == Some("LH001")
}

async fn insert(connection: &mut PgConnection, append: &Append) -> Result<()> {
    let insert =
        query("INSERT INTO entry (token, value) VALUES ($1, $2) ON CONFLICT (value) DO NOTHING");
    insert
        .bind(append.token.cast_signed())
        .bind(&append.value)
        .execute(connection)
        .await?;
    Ok(())
}

async fn append_by_column(connection: &mut PgConnection, append: &Append) -> Result<Written> {
    query("BEGIN").execute(&mut *connection).await?;
    let update =
        "UPDATE report SET entries = CASE WHEN $1::bigint || ' ' || $2 = ANY (entries) THEN entries
            ELSE entries || ($1::bigint || ' ' || $2) END, fencing_token = $1
        WHERE id = 1 AND fencing_token <= $1";
    let updated = query(update)
        .bind(append.token.cast_signed())
        .bind(&append.value)
        .execute(&mut *connection)
        .await?;
    tokio::time::sleep(append.pause).await;
    query("COMMIT").execute(connection).await?;
    let is_written = updated.rows_affected() == 1;
    Ok(if is_written {
        Written::Accepted
    } else {
        Written::Stale
    })
}

async fn entries(connection: &mut PgConnection, form: Form) -> Result<Vec<Entry>> {
    let of_column = "SELECT split_part(entry, ' ', 1)::bigint, split_part(entry, ' ', 2)
        FROM report, unnest(entries) WITH ORDINALITY AS entries (entry, number) ORDER BY number";
    let of_table = "SELECT token, value FROM entry ORDER BY number";
    let select = if form == Form::Column {
        of_column
    } else {
        of_table
    };
    let rows: Vec<(i64, String)> = query_as(select).fetch_all(connection).await?;
    let entry = |(token, value): (i64, String)| Entry {
        token: token.cast_unsigned(),
        value,
    };
    Ok(rows.into_iter().map(entry).collect())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn no_older_token_passes_after_a_newer_one() -> Result<()> {
    run(&Fenced::start(Form::Function).await?, 4).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn fence_as_a_condition_refuses_older_tokens() -> Result<()> {
    run(&Fenced::start(Form::Condition).await?, 4).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn guard_column_refuses_older_tokens() -> Result<()> {
    run(&Fenced::start(Form::Column).await?, 4).await?;
    Ok(())
}

/// With `<` instead of `<=`, each token writes once.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn strict_guard_column_refuses_a_repetition() -> Result<()> {
    let server = Server::start().await?;
    let mut connection = server.connect().await?;
    let update = "UPDATE report SET entries = entries || 'new'::text, fencing_token = $1
        WHERE id = 1 AND fencing_token < $1";
    for (token, rows) in [(1000_i64, 1), (1000, 0), (999, 0), (1001, 1), (1001, 0)] {
        let updated = query(update).bind(token).execute(&mut connection).await?;
        assert_eq!(updated.rows_affected(), rows, "{token}");
    }
    Ok(())
}

/// The file that removes the fence leaves nothing behind, so that it can be installed again.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn fence_can_be_removed_and_installed_again() -> Result<()> {
    let server = Server::start().await?;
    let migrations = Migrator::new(migrations("postgresql")).await?;
    let mut connection = server.connect().await?;
    migrations.undo(&mut connection, 0).await?;
    let gone = fence(&mut connection, 1000).await.unwrap_err();
    assert!(gone.to_string().contains("does not exist"), "{gone}");
    migrations.run(&mut connection).await?;
    fence(&mut connection, 1000).await?;
    Ok(())
}

/// The control: the same run without a fence has violations.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn run_without_fence_is_noticed() -> Result<()> {
    run_with_violation(&Fenced::start(Form::None).await?, 0, "back to token").await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_worker_cannot_write() -> Result<()> {
    let server = Server::start().await?;
    let psql = format!("psql -X -q -t -A -h {} -U postgres", server.host());
    let write = |fence: &str| {
        format!(
            "{psql} -v ON_ERROR_STOP=1 -v token=\"$TOKEN\" -v value=\"$VALUE\" <<'SQL'
BEGIN;
{fence}
UPDATE body SET text = :'value';
COMMIT;
SQL"
        )
    };
    stale_writer_is_refused(&Story {
        prepare: "",
        fenced: write("SELECT leasehold.fence('report', :token);"),
        unfenced: write(""),
        read: format!("{psql} -c 'SELECT text FROM body'"),
        refusal: "stale fencing token",
    })
    .await
}
