//! The chart's own test, run as a platform engineer runs it after the installation.

use anyhow::{Result, ensure};

use crate::harness::now;
use crate::install::{Leasehold, NAME};

#[tokio::test]
async fn helm_test_passes() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let began = now();
    let said = leasehold.helm(&["test", NAME]).await?;
    ensure!(said.contains("Succeeded"), "{said}");
    crate::tell(&format!(
        "measured: helm test passed in {:?}",
        now().since(began)
    ))
}
