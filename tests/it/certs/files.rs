//! A certificate in a directory that another program maintains.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use leasehold::clock::SystemClock;
use leasehold::protocol::time::WallTime;
use leasehold::store::certificates::TlsFiles;
use leasehold::webhook::certs::{ServedCertificate, follow, issue};

fn pair(name: &str) -> TlsFiles {
    issue(
        &[name.to_owned()],
        Duration::from_secs(3_600),
        1_800_000_000,
    )
    .unwrap()
}

/// Replaces the files as the kubelet does: a new directory, and a link that is renamed over the old
/// one.
fn swap(directory: &Path, number: u32, certificate: &[u8], key: &[u8]) {
    let inner = directory.join(format!("..{number}"));
    fs::create_dir(&inner).unwrap();
    fs::write(inner.join("tls.crt"), certificate).unwrap();
    fs::write(inner.join("tls.key"), key).unwrap();
    symlink(format!("..{number}"), directory.join("..data_tmp")).unwrap();
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    for file in ["tls.crt", "tls.key"] {
        let _there = symlink(format!("..data/{file}"), directory.join(file));
    }
}

/// More than twice the interval of the check.
async fn a_while() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn valid_certificates_are_served_and_broken_ones_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().to_owned();
    let served = ServedCertificate::default();
    let handle = served.clone();
    let path = at.clone();
    tokio::spawn(async move { follow(&path, &handle, &SystemClock).await });
    a_while().await;
    let why = served.ready().unwrap_err();
    assert!(why.contains("tls.crt cannot be read"), "{why}");

    let (first, second) = (pair("a.svc"), pair("b.svc"));
    swap(&at, 1, &first.certificate, &first.key);
    a_while().await;
    assert!(served.ready().is_ok());
    let before = served.certificate();
    let metrics = served.metrics();
    let not_after = "leasehold_webhook_certificate_not_after_timestamp_seconds 1800003600\n";
    assert!(metrics.contains(not_after), "{metrics}");

    let is_invalid = |second: i64| served.is_invalid_at(WallTime(second * 1_000_000));
    assert!(!is_invalid(1_800_000_001) && !is_invalid(1_800_003_600));
    assert!(is_invalid(1_800_003_601) && is_invalid(1_700_000_000));

    // Halves of two pairs, and invalid content.
    swap(&at, 2, &second.certificate, &first.key);
    a_while().await;
    swap(&at, 3, b"-----BEGIN CERTIFICATE-----\n", &first.key);
    a_while().await;
    assert_eq!(served.certificate(), before);
    assert!(served.ready().is_ok(), "the old one is valid");

    swap(&at, 4, &second.certificate, &second.key);
    a_while().await;
    assert_ne!(served.certificate(), before);
    assert!(served.certificate().is_some());
}
