//! Certificates that live for seconds: what takes months otherwise.

use anyhow::{Result, ensure};
use leasehold::webhook::certs::authorities;

use super::stage::{self, Stage};

/// Renewed every forty seconds; each is trusted for three seconds before it is served.
const SECONDS: u32 = 60;
const ROTATIONS: usize = 2;
/// So many pods are made after each, one after the other, and all the time before.
const PODS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn certificate_rotation_refuses_no_pod() -> Result<()> {
    let stage = Stage::new().await?;
    let a = stage.operator("a", SECONDS).await?;
    let b = stage.operator("b", SECONDS).await?;
    let pods = stage.make_pods();
    let mut before = None;
    for _ in 0..=ROTATIONS {
        before = Some(
            stage
                .until_served_by_all(&[&a, &b], before.as_deref())
                .await?,
        );
        pods.until_more_are_made(PODS).await?;
    }
    let made = pods.end().await?;
    println!("{made} pods were made in {ROTATIONS} rotations");
    for operator in [&a, &b] {
        ensure!(operator.metric(stage::NOT_AFTER).await? > 0.0);
    }
    for bundle in stage.bundles().await? {
        let trusted = authorities(&bundle).unwrap_or_default().len();
        ensure!((1..=2).contains(&trusted), "{trusted} are trusted");
    }
    Ok(())
}
