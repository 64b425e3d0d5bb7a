//! Thousands of leases in one sidecar that is killed: one renewal and one list resume them all.

use futures::{StreamExt as _, TryStreamExt as _};

use super::*;

const LEASES: usize = 2_500;
/// How many apps ask at the same time.
const AT_ONCE: usize = 64;

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_leases_are_resumed() -> Result<()> {
    let node = Node::new("thousands").await?;
    // Longer than a busy machine takes.
    let start = async || node.launch_with(&node.pod, 30).start().await;
    let a = start().await?;
    let numbers = futures::stream::iter(0..LEASES);
    let taken = numbers.map(|number| {
        let a = &a;
        async move {
            a.acquire_for_long(&format!("res-{number}"))
                .await?
                .granted()
        }
    });
    let leases: Vec<Lease> = taken.buffer_unordered(AT_ONCE).try_collect().await?;
    let bytes = std::fs::metadata(node.file())?.len();
    let session = node.session_of("res-0").await?;
    kill(a).await?;
    let began = now();
    let a = start().await?;
    let last = leases.last().context("a lease")?;
    renewed(&a, last).await?.granted()?;
    let took = now().since(began);
    let listed = serde_json::to_vec(&node.namespace.all("distributedlocks").await?)?.len();
    println!(
        "{LEASES} leases went on {took:?} after the start; the file had {bytes} bytes, the list {listed}"
    );
    let goes_on = lines(&a, RESUMED);
    ensure!(
        goes_on.len() == 1 && goes_on[0]["leases"] == LEASES,
        "{goes_on:?}"
    );
    ensure!(goes_on[0]["lost"] == 0, "{goes_on:?}");
    for lease in &leases {
        let again = a.renew(&lease.id).await?.granted()?;
        ensure!(again.token == lease.token, "{again:?} after {lease:?}");
    }
    ensure!(node.session_of("res-7").await? == session);
    // The rewritten file is as good.
    kill(a).await?;
    let a = start().await?;
    renewed(&a, &leases[7]).await?.granted()?;
    ensure!(lines(&a, RESUMED)[0]["leases"] == LEASES, "{}", a.log());
    Ok(())
}
