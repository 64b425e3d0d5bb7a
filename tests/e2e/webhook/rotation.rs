//! Certificates that live for seconds: what takes months otherwise.

use anyhow::{Result, ensure};
use leasehold::webhook::certs::authorities;

use super::fixture::{self, Fixture};

/// Renewed every forty seconds; each is trusted for three seconds before it is served.
const SECONDS: u32 = 60;
const ROTATIONS: usize = 2;
/// This many pods are created after each, one after the other, and all the time before.
const PODS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn certificate_rotation_refuses_no_pod() -> Result<()> {
    let fixture = Fixture::new().await?;
    let a = fixture.operator("a", SECONDS).await?;
    let b = fixture.operator("b", SECONDS).await?;
    let pods = fixture.make_pods();
    let mut before = None;
    for _ in 0..=ROTATIONS {
        before = Some(
            fixture
                .until_served_by_all(&[&a, &b], before.as_deref())
                .await?,
        );
        pods.until_more_are_made(PODS).await?;
    }
    let made = pods.end().await?;
    println!("{made} pods were made in {ROTATIONS} rotations");
    for operator in [&a, &b] {
        ensure!(operator.metric(fixture::NOT_AFTER).await? > 0.0);
    }
    for bundle in fixture.bundles().await? {
        let trusted = authorities(&bundle).unwrap_or_default().len();
        ensure!((1..=2).contains(&trusted), "{trusted} are trusted");
    }
    Ok(())
}
