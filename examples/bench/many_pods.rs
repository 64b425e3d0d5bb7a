//! Many pods that hold one lock each: their cost for the API server.

use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use futures::stream;

use crate::aims;
use crate::harness::{Namespace, Requests, Sidecar, now};

const PODS: usize = 500;
/// The number of sidecars that start at the same time.
const AT_ONCE: usize = 8;
/// How long the cost is measured.
const MINUTE: Duration = Duration::from_secs(60);

/// The cost of one minute.
struct Minute {
    api_server: Duration,
    etcd: Duration,
    requests: Requests,
}

/// Measures and prints the results.
#[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
pub(crate) async fn measure(ours: &str, namespace: &Namespace) -> Result<()> {
    let idle = minute(namespace).await?;
    let before = Requests::counted(&namespace.client).await?;
    let sidecars = holding(ours, namespace).await?;
    let taken = Requests::counted(&namespace.client).await?.since(&before);
    let mut resident = 0;
    for sidecar in &sidecars {
        resident += sidecar.rss_kib()?;
    }
    let held = minute(namespace).await?;
    println!();
    println!("{PODS} pods that hold one lock each, for a minute:");
    for (who, minute) in [("before", &idle), ("meanwhile", &held)] {
        println!(
            "  {who}: API server {:.1} s of CPU, etcd {:.1} s",
            minute.api_server.as_secs_f64(),
            minute.etcd.as_secs_f64()
        );
    }
    println!(
        "  a sidecar has {:.1} MiB resident on average",
        aims::mebibytes(resident / u64::try_from(sidecars.len())?)
    );
    println!("asked in that minute:\n{}", held.requests);
    println!("asked before, to take the locks, with the watches that stay open:\n{taken}");
    Ok(())
}

/// Starts the sidecars. Each has its own pod, session and lock.
async fn holding(ours: &str, namespace: &Namespace) -> Result<Vec<Sidecar>> {
    // Rights belong to the ServiceAccount: once the first pod has them, all pods have them.
    namespace.pod("pod").await?;
    let sidecars = stream::iter(0..PODS).map(async |number| {
        let pod = namespace.pod_of(&format!("pod-{number}"), "app").await?;
        let sidecar = Sidecar::launch(ours, &pod).default_log().start().await?;
        let lock = serde_json::json!({"resource": pod.name, "ttlSeconds": 3600});
        sidecar.acquire_with(&lock).await?.granted()?;
        anyhow::Ok(sidecar)
    });
    let sidecars: Vec<_> = sidecars.buffer_unordered(AT_ONCE).collect().await;
    sidecars.into_iter().collect()
}

async fn minute(namespace: &Namespace) -> Result<Minute> {
    let control_plane = namespace.cluster.control_plane();
    let before = control_plane.cpu_time().await?;
    let requests = Requests::counted(&namespace.client).await?;
    let end = now().after(MINUTE);
    tokio::time::sleep(end.since(now())).await;
    let after = control_plane.cpu_time().await?;
    Ok(Minute {
        api_server: after.0.saturating_sub(before.0),
        etcd: after.1.saturating_sub(before.1),
        requests: Requests::counted(&namespace.client).await?.since(&requests),
    })
}
