//! Watches a directory with a certificate that another tool or a user maintains, like cert-manager.
//!
//! It compares the content every few seconds: the kubelet swaps a whole directory behind a symbolic
//! link, and other tools write into files. A read in the middle of a change does not match; it is
//! not served, and read again.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::read::Pair;
use super::served::ServedCertificate;
use crate::clock::Clock;
use crate::store::certificates::TlsFiles;

/// How often the files are read. The kubelet itself takes a minute or more.
const INTERVAL: Duration = Duration::from_secs(2);

/// Serves `tls.crt` and `tls.key` of the directory, forever. An unusable certificate is logged, and
/// the previous one stays. A certificate that is not valid yet, or has expired, is served and
/// logged. Which clock is wrong cannot be known here, and no better certificate exists.
pub async fn follow(directory: &Path, served: &ServedCertificate, clock: &dyn Clock) {
    let mut before = None;
    let mut last_error = None;
    let mut is_invalid = false;
    loop {
        match read_if_changed(directory, before.as_ref()) {
            Ok(None) => {}
            Ok(Some((files, pair))) => {
                tracing::info!(
                    directory = %directory.display(), notAfter = pair.not_after,
                    "serving a new certificate"
                );
                served.serve(pair);
                // Its issuer has to make the API server trust it.
                served.set_complete();
                (before, last_error) = (Some(files), None);
            }
            Err(words) => {
                if last_error.as_ref() != Some(&words) {
                    tracing::warn!(
                        directory = %directory.display(), error = words, "certificate is unusable"
                    );
                }
                served.set_missing(&words);
                last_error = Some(words);
            }
        }
        let was_invalid = std::mem::replace(&mut is_invalid, served.is_invalid_at(clock.wall()));
        if is_invalid && !was_invalid {
            tracing::error!(
                directory = %directory.display(),
                advice = "renew the certificate, or correct this machine's clock",
                "served certificate is not valid now"
            );
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Reads the files, if they have changed.
fn read_if_changed(
    directory: &Path,
    before: Option<&TlsFiles>,
) -> Result<Option<(TlsFiles, Pair)>, String> {
    let file = |name: &str| {
        let read = std::fs::read(directory.join(name));
        read.map_err(|error: io::Error| format!("{name} cannot be read: {error}"))
    };
    let files = TlsFiles {
        certificate: file("tls.crt")?,
        key: file("tls.key")?,
        authority: Vec::new(),
    };
    if before == Some(&files) {
        return Ok(None);
    }
    let pair = Pair::read(&files).map_err(|error| error.to_string())?;
    Ok(Some((files, pair)))
}
