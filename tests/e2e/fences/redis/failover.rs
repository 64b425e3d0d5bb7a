//! Random writers on a primary whose replica takes its place, while the primary has writes that the replica lacks.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;

use super::losses::wait_for_replica;
use super::server::Server;
use super::{Form, KEYS, entries, push};
use crate::fences::random::{run, run_with_violation};
use crate::fences::store::{Append, Store, Written};
use crate::harness::{PATIENCE, eventually};
use crate::history::Entry;

/// How many writes the lost primary has that its replica lacks.
const MORE: u64 = 20;
/// How long a writer waits for the replica.
const WAIT: Duration = Duration::from_millis(200);

/// A primary and its replica.
#[derive(Clone)]
struct Servers {
    primary: Rc<Server>,
    replica: Rc<Server>,
}

impl Servers {
    async fn of(primary: Rc<Server>) -> Result<Self> {
        let replica = Rc::new(primary.start_replica().await?);
        Ok(Self { primary, replica })
    }
}

/// The two, and whether a writer waits until the replica has its entry.
struct Replicated {
    servers: RefCell<Servers>,
    waits: bool,
}

impl Replicated {
    async fn start(waits: bool) -> Result<Self> {
        let primary = Rc::new(Server::start_durable().await?);
        let servers = RefCell::new(Servers::of(primary).await?);
        Ok(Self { servers, waits })
    }

    fn servers(&self) -> Servers {
        self.servers.borrow().clone()
    }
}

impl Store for Replicated {
    type Connection = MultiplexedConnection;

    async fn connect(&self) -> Result<MultiplexedConnection> {
        self.servers().primary.connect().await
    }

    async fn append(
        &self,
        connection: &mut MultiplexedConnection,
        append: &Append,
    ) -> Result<Written> {
        tokio::time::sleep(append.pause).await;
        let written = push(connection, Form::Function, append).await?;
        if self.waits && written == Written::Accepted {
            let replicas = wait_for_replica(connection, WAIT).await?;
            ensure!(replicas == 1, "the replica may not have the entry");
        }
        Ok(written)
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        entries(&self.servers().primary).await
    }

    async fn crash(&self) -> Result<()> {
        let Servers { primary, replica } = self.servers();
        replica.detach_from(&primary).await?;
        let before = length(&primary).await?;
        eventually("writes that only the primary has", PATIENCE, async || {
            (length(&primary).await.ok()? >= before + MORE).then_some(())
        })
        .await?;
        primary.kill()?;
        replica.promote().await?;
        let servers = Servers::of(replica).await?;
        self.servers.replace(servers);
        Ok(())
    }
}

async fn length(server: &Server) -> Result<u64> {
    server.call(&["HLEN", KEYS[1]]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn failovers_lose_no_entry_that_the_writer_waited_for() -> Result<()> {
    run(&Replicated::start(true).await?, 3).await?;
    Ok(())
}

/// The control, and what docs/fencing-redis.md says: no writer waits for the replica.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn failover_loses_entries_of_writers_that_do_not_wait() -> Result<()> {
    run_with_violation(&Replicated::start(false).await?, 1, "an entry 0 times").await
}
