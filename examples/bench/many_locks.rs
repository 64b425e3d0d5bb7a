//! One pod that holds many locks: its memory, the duration of a renew, and the requests that the
//! API server receives.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;

use crate::aims;
use crate::harness::{Namespace, Requests, Sidecar};
use crate::kept_alive::KeptAlive;
use crate::rows::Rows;

/// The number of locks that the pod holds in each step. The last one is the maximum of an agent.
const STEPS: [usize; 3] = [1, 1_000, 10_000];
/// The number of connections that acquire the locks.
const CONNECTIONS: usize = 16;
/// The number of renewals in each step. Each of them is of a random lease.
const RENEWALS: usize = 2_000;
/// How long the requests to the API server are counted.
const SILENCE: Duration = Duration::from_secs(60);
const RENEW: &str = "renew";

/// Measures and prints the results.
#[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
pub(crate) async fn measure(ours: &str, namespace: &Namespace) -> Result<()> {
    let pod = namespace.pod("many").await?;
    let sidecar = Sidecar::launch(ours, &pod).default_log().start().await?;
    let mut apps = Vec::new();
    for _ in 0..CONNECTIONS {
        apps.push(KeptAlive::to(&sidecar).await?);
    }
    let empty = sidecar.rss_kib()?;
    println!();
    println!(
        "{:<22} {:>10} {:>14} {:>13} {:>15}   requests a minute",
        "one pod holds, locks", "MiB", "KiB a lease", "renew ms", "renew p99 ms"
    );
    let mut leases = Vec::new();
    for step in STEPS {
        let resources: Vec<_> = (leases.len()..step).collect();
        leases.extend(take(&mut apps, &resources).await?);
        let renewals = renew(&mut apps[0], &leases).await?;
        let rss = sidecar.rss_kib()?;
        let each = rss.saturating_sub(empty).div_ceil(u64::try_from(step)?);
        let requests = asked(namespace).await?;
        println!(
            "{step:<22} {:>10.1} {each:>14} {:>13.3} {:>15.3}   {requests}",
            aims::mebibytes(rss),
            renewals.median(RENEW),
            renewals.quantile(RENEW, 99),
        );
    }
    println!(
        "aims: under 40 MiB with the most, as quick a renew, and no more writes than with one"
    );
    Ok(())
}

/// Acquires new locks over all connections at the same time, and returns the leases' ids.
async fn take(apps: &mut [KeptAlive], numbers: &[usize]) -> Result<Vec<String>> {
    let each = numbers.len().div_ceil(apps.len()).max(1);
    let shares = apps.iter_mut().zip(numbers.chunks(each));
    let taken = shares.map(async |(app, share)| {
        let mut leases = Vec::new();
        for number in share {
            leases.push(app.acquire(&format!("bench:many-{number}")).await?);
        }
        anyhow::Ok(leases)
    });
    Ok(try_join_all(taken).await?.concat())
}

async fn renew(app: &mut KeptAlive, leases: &[String]) -> Result<Rows> {
    let mut rows = Rows::default();
    for _ in 0..RENEWALS {
        let lease = &leases[fastrand::usize(..leases.len())];
        rows.time(RENEW, app.renew(lease)).await?;
    }
    Ok(rows)
}

/// Counts the requests to the API server for some time, by kind.
async fn asked(namespace: &Namespace) -> Result<String> {
    let before = Requests::counted(&namespace.client).await?;
    tokio::time::sleep(SILENCE).await;
    let came = Requests::counted(&namespace.client).await?.since(&before);
    let lines = came.to_string();
    let lines = lines.lines().map(str::trim).collect::<Vec<_>>();
    Ok(lines.join(", "))
}
