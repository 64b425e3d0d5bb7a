//! Debian's PostgreSQL: one server, or a primary with a standby.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, query_scalar};

use super::super::server::{Daemon, migrations, new_directory, output, unprivileged};
use crate::harness::{PATIENCE, eventually};

/// The tables that the fence guards.
const TABLES: &str = "
    CREATE TABLE entry (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        token bigint NOT NULL,
        value text NOT NULL UNIQUE
    );
    CREATE TABLE report (
        id bigint PRIMARY KEY,
        entries text[] NOT NULL DEFAULT '{}',
        fencing_token bigint NOT NULL DEFAULT 1
    );
    INSERT INTO report (id) VALUES (1);
    CREATE TABLE body (text text NOT NULL UNIQUE);
    INSERT INTO body VALUES ('empty');";

/// A server with its directory. Dropping it kills it.
pub(super) struct Server {
    daemon: Daemon,
}

impl Server {
    /// Starts a server with the fence and its tables, as a superuser creates them.
    pub(super) async fn start() -> Result<Self> {
        let directory = new_directory("postgresql")?;
        let data = directory.join("data");
        let mut init = unprivileged(binary("initdb")?);
        init.args([
            "--auth=trust",
            "--username=postgres",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ]);
        output(init.arg("--pgdata").arg(&data))?;
        let server = Self::run(directory).await?;
        server.install().await?;
        Ok(server)
    }

    /// Starts a standby of this server, which receives what the primary writes.
    pub(super) async fn start_standby(&self) -> Result<Self> {
        let directory = new_directory("standby")?;
        let mut copy = unprivileged(binary("pg_basebackup")?);
        copy.args([
            "--username=postgres",
            "--write-recovery-conf",
            "--wal-method=stream",
            "--checkpoint=fast",
        ]);
        copy.arg("--host").arg(self.daemon.directory());
        output(
            copy.arg("--no-sync")
                .arg("--pgdata")
                .arg(directory.join("data")),
        )?;
        let standby = Self::run(directory).await?;
        self.until_standbys(1).await?;
        Ok(standby)
    }

    /// Waits until no standby receives what this server writes.
    pub(super) async fn until_alone(&self) -> Result<()> {
        self.until_standbys(0).await
    }

    async fn until_standbys(&self, expected: i64) -> Result<()> {
        let what = format!("{expected} standbys that receive");
        let count = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";
        eventually(&what, PATIENCE, async || {
            let mut connection = self.connect().await.ok()?;
            let count: i64 = query_scalar(count).fetch_one(&mut connection).await.ok()?;
            (count == expected).then_some(())
        })
        .await
    }

    /// Acknowledges a commit only when a standby has it on its disk.
    pub(super) async fn be_synchronous(&self) -> Result<()> {
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            .await?;
        self.execute("SELECT pg_reload_conf()").await?;
        eventually("a synchronous standby", PATIENCE, async || {
            let mut connection = self.connect().await.ok()?;
            let count = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            let count: i64 = query_scalar(count).fetch_one(&mut connection).await.ok()?;
            (count == 1).then_some(())
        })
        .await?;
        // Its commit waits for the standby, so the standby has all commits before it, too.
        self.execute("SELECT pg_current_xact_id()").await
    }

    /// Waits until this standby has what the primary has written so far.
    pub(super) async fn until_received(&self, primary: &Self) -> Result<()> {
        let position = "SELECT pg_current_wal_flush_lsn()::text";
        let position: String = query_scalar(position)
            .fetch_one(&mut primary.connect().await?)
            .await?;
        eventually("the standby to receive", PATIENCE, async || {
            let mut connection = self.connect().await.ok()?;
            let received = "SELECT pg_last_wal_replay_lsn() >= $1::pg_lsn";
            let received = query_scalar(received).bind(&position);
            let received: bool = received.fetch_one(&mut connection).await.ok()?;
            received.then_some(())
        })
        .await
    }

    async fn run(directory: PathBuf) -> Result<Self> {
        let server = Self {
            daemon: Daemon::new(directory, command),
        };
        server.restart().await?;
        Ok(server)
    }

    /// Starts it after a [`Self::kill`].
    pub(super) async fn restart(&self) -> Result<()> {
        self.daemon.start(async || self.connect().await).await
    }

    /// Kills it without a warning.
    pub(super) fn kill(&self) -> Result<()> {
        self.daemon.kill()
    }

    /// Makes the primary of a standby.
    pub(super) async fn promote(&self) -> Result<()> {
        self.execute("SELECT pg_promote()").await
    }

    /// Connects as a superuser.
    pub(super) async fn connect(&self) -> Result<PgConnection> {
        self.connect_as("postgres").await
    }

    /// Connects as a user.
    pub(super) async fn connect_as(&self, user: &str) -> Result<PgConnection> {
        let options = PgConnectOptions::new_without_pgpass()
            .host(&self.host())
            .username(user);
        Ok(
            PgConnection::connect_with(&options.database("postgres").disable_statement_logging())
                .await?,
        )
    }

    /// Returns the directory of its socket, where clients expect a host name.
    pub(super) fn host(&self) -> String {
        self.daemon.directory().display().to_string()
    }

    /// Runs statements, as a superuser.
    pub(super) async fn execute(&self, statements: &'static str) -> Result<()> {
        sqlx::raw_sql(statements)
            .execute(&mut self.connect().await?)
            .await?;
        Ok(())
    }

    async fn install(&self) -> Result<()> {
        let migrations = Migrator::new(migrations("postgresql")).await?;
        migrations.run(&mut self.connect().await?).await?;
        self.execute(TABLES).await
    }
}

fn command(directory: &Path) -> Result<Command> {
    let mut command = unprivileged(binary("postgres")?);
    command
        .arg("-D")
        .arg(directory.join("data"))
        .arg("-k")
        .arg(directory);
    command.args([
        "-c",
        "listen_addresses=",
        "-c",
        "max_prepared_transactions=10",
    ]);
    Ok(command)
}

/// Returns a program of the newest installed version, which need not be in the PATH.
pub(super) fn binary(name: &str) -> Result<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").context("install postgresql")?;
    let mut versions: Vec<_> = versions
        .filter_map(|version| Some(version.ok()?.path()))
        .collect();
    versions.sort();
    let newest = versions.last().context("install postgresql")?;
    Ok(newest.join("bin").join(name))
}
