//! A row of the table: one message that fails in each way.
//!
//! An agent gives a try five seconds, and a late message takes three of them. The rest may be too short for an API
//! server without CPU time, and then an error is right. So each row measures how long the API server takes for a
//! read: a cell that fails while the server is too slow shows nothing, and is run again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace as NamespaceObject;
use kube::Api;
use tokio::sync::OnceCell;

use crate::harness::{Cluster, Fault, TakeOver, now};
use crate::support::{sidecar, tell};

/// Longer than an agent waits for any answer.
pub(super) const LATE: Duration = Duration::from_secs(4);
const FAULTS: [Fault; 6] = [
    Fault::RequestLost,
    Fault::RequestLate(LATE),
    Fault::AnswerLost,
    Fault::AnswerLate(LATE),
    Fault::TimeoutBefore,
    Fault::TimeoutAfter,
];

/// An API server that takes longer for a read does not keep up: a try makes seven calls or so, and has
/// two seconds for them.
const KEEPS_UP: Duration = Duration::from_millis(250);
/// How often a cell is run.
const ROUNDS: usize = 6;
/// The interval between two measurements of the API server.
const PROBE: Duration = Duration::from_millis(50);

/// Runs all cells of a row at once, and says which failed.
pub(super) async fn row(cell: impl AsyncFn(Arc<Cluster>, Fault) -> Result<()>) -> Result<()> {
    let cluster = warm().await?;
    let mut faults = FAULTS.to_vec();
    for round in 1..=ROUNDS {
        let cells = faults.iter().map(async |fault| {
            let outcome = cell(Arc::clone(&cluster), *fault).await;
            let error = outcome.err()?;
            Some((*fault, format!("{fault:?}: {error:#}")))
        });
        let mut slowest = Duration::ZERO;
        let failed: Vec<_> = tokio::select! {
            ended = join_all(cells) => ended.into_iter().flatten().collect(),
            error = probe(&cluster, &mut slowest) => return Err(error),
        };
        if failed.is_empty() {
            return Ok(());
        }
        let (again, words): (Vec<_>, Vec<_>) = failed.into_iter().unzip();
        let words = words.join("\n");
        ensure!(
            slowest > KEEPS_UP && round < ROUNDS,
            "in round {round}, with {slowest:?} for the slowest read:\n{words}"
        );
        let why = format!("a read took {slowest:?}");
        tell(&format!("round {round} says nothing, {why}:\n{words}"))?;
        faults = again;
    }
    Ok(())
}

/// The shared cluster. A new control plane takes two seconds to create the first session.
async fn warm() -> Result<Arc<Cluster>> {
    static USED: OnceCell<()> = OnceCell::const_new();
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let used = USED.get_or_try_init(async || {
        let namespace = cluster.namespace("warm").await?;
        let first = sidecar(&namespace.pod("first").await?, 15).await?;
        first.acquire("res").await?.granted()?;
        anyhow::Ok(())
    });
    used.await?;
    Ok(cluster)
}

/// Notes how long the slowest read takes, until it is dropped.
async fn probe(cluster: &Cluster, slowest: &mut Duration) -> anyhow::Error {
    let client = match cluster.admin().await {
        Ok(client) => client,
        Err(error) => return error,
    };
    let namespaces: Api<NamespaceObject> = Api::all(client);
    loop {
        let asked = now();
        if let Err(error) = namespaces.get("default").await {
            return error.into();
        }
        *slowest = (*slowest).max(now().since(asked));
        tokio::time::sleep(PROBE).await;
    }
}
