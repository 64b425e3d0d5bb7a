//! A standby that becomes the primary: nothing is lost if the replication is synchronous, and what is lost if not.

use anyhow::ensure;

use super::*;

/// A primary with a standby.
struct Replicated {
    primary: Mutex<std::sync::Arc<Server>>,
    standby: Mutex<std::sync::Arc<Server>>,
}

fn of(server: &Mutex<std::sync::Arc<Server>>) -> std::sync::Arc<Server> {
    server
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

impl Replicated {
    async fn start() -> Result<Self> {
        let primary = Server::start().await?;
        let standby = primary.start_standby().await?;
        primary.be_synchronous().await?;
        Ok(Self {
            primary: Mutex::new(primary.into()),
            standby: Mutex::new(standby.into()),
        })
    }
}

impl Store for Replicated {
    type Connection = PgConnection;

    async fn connect(&self) -> Result<PgConnection> {
        of(&self.primary).connect().await
    }

    async fn append(&self, connection: &mut PgConnection, append: &Append) -> Result<Written> {
        append_by_function(connection, append).await
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        entries(&mut self.connect().await?, Form::Function).await
    }

    /// The primary is killed, and its standby becomes the primary of a new one.
    async fn crash(&self) -> Result<()> {
        of(&self.primary).kill()?;
        let primary = of(&self.standby);
        primary.promote().await?;
        let standby = primary.start_standby().await?;
        primary.be_synchronous().await?;
        *self.primary.lock().unwrap_or_else(PoisonError::into_inner) = primary;
        *self.standby.lock().unwrap_or_else(PoisonError::into_inner) = standby.into();
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn synchronous_failover_loses_no_token() -> Result<()> {
    run(&Replicated::start().await?, 2).await?;
    Ok(())
}

/// What docs/fencing.md says that the store may lose.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn asynchronous_failover_can_lose_the_newest_token() -> Result<()> {
    let primary = Server::start().await?;
    let standby = primary.start_standby().await?;
    fence(&mut primary.connect().await?, 1000).await?;
    standby.until_received(&primary).await?;
    standby
        .execute("ALTER SYSTEM SET primary_conninfo = ''")
        .await?;
    standby.execute("SELECT pg_reload_conf()").await?;
    primary.until_alone().await?;
    fence(&mut primary.connect().await?, 2000).await?;
    primary.kill()?;
    standby.promote().await?;

    let mut connection = standby.connect().await?;
    fence(&mut connection, 1000)
        .await
        .context("the newest token was lost, so 1000 passes")?;
    let older = fence(&mut connection, 999).await;
    ensure!(
        older.is_err_and(|error| is_stale(&error)),
        "what was received still refuses"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn standby_says_that_it_only_reads() -> Result<()> {
    let primary = Server::start().await?;
    let standby = primary.start_standby().await?;
    let refused = fence(&mut standby.connect().await?, 1000)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("read-only transaction"),
        "{refused}"
    );
    Ok(())
}
