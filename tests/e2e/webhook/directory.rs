//! A certificate that is provided in a directory.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use leasehold::store::certificates::TlsFiles;
use leasehold::webhook::certs::issue;

use super::LIMIT;
use super::fixture::{self, Fixture};
use crate::harness::eventually;

/// Valid for an hour, and for so many seconds more, by which it is told from others.
fn made(extra: i64) -> Result<TlsFiles> {
    let life = Duration::from_secs(3_600);
    let now = jiff::Timestamp::now().as_second() + extra;
    Ok(issue(&["127.0.0.1".to_owned()], life, now)?)
}

fn write(directory: &Path, files: &TlsFiles) -> Result<()> {
    fs::write(directory.join("tls.crt"), &files.certificate)?;
    fs::write(directory.join("tls.key"), &files.key)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificate_directory_is_served_and_followed() -> Result<()> {
    let fixture = Fixture::new().await?;
    let directory = fixture.directory("certificates")?;
    let (old, new) = (made(0)?, made(100)?);
    write(&directory, &old)?;
    let both = [&old.authority[..], &new.authority[..]].concat();
    fixture.set_bundles(&both).await?;
    let path = directory.display().to_string();
    let operator = fixture
        .operator_with("a", &["--webhook-cert-dir", &path])
        .await?;
    fixture.until_made().await?;
    let before = operator.metric(fixture::NOT_AFTER).await?;

    let pods = fixture.make_pods();
    fs::write(directory.join("tls.key"), b"broken")?;
    eventually("the broken one to be told of", LIMIT, async || {
        operator.log().contains("tls.key has no key").then_some(())
    })
    .await?;
    ensure!(operator.metric(fixture::NOT_AFTER).await? - before < 1.0);
    write(&directory, &new)?;
    eventually("the new one to be served", LIMIT, async || {
        let not_after = operator.metric(fixture::NOT_AFTER).await.ok()?;
        (not_after > before + 50.0).then_some(())
    })
    .await?;
    fixture.until_reviewed_by(&operator, 3).await?;
    ensure!(pods.end().await? > 0);
    // It writes nothing for it.
    ensure!(fixture.secret().await?.is_none());
    Ok(())
}
