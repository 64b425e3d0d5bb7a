//! Follows a directory that somebody else keeps a certificate in: cert-manager, or a person.
//!
//! By content, every few seconds: the kubelet swaps a whole directory behind a symbolic link, and
//! others write into files. What is read in the middle of that does not fit together, is not served,
//! and is read again.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::read::Pair;
use super::served::Served;
use crate::clock::Clock;
use crate::store::certificates::TlsFiles;

/// How often the files are read. The kubelet itself takes up to a minute and more.
const INTERVAL: Duration = Duration::from_secs(2);

/// Serves what is in the directory as `tls.crt` and `tls.key`, for ever. What cannot be served is
/// logged, and what was served before goes on. One that is not valid yet, or any more, is served and told of:
/// whose clock is wrong cannot be known here, and there is no better one.
pub async fn follow(directory: &Path, served: &Served, clock: &dyn Clock) {
    let mut before = None;
    let mut trouble = None;
    let mut is_invalid = false;
    loop {
        match look(directory, before.as_ref()) {
            Ok(None) => {}
            Ok(Some((files, pair))) => {
                tracing::info!(
                    directory = %directory.display(), notAfter = pair.not_after,
                    "serving a new certificate"
                );
                served.serve(pair);
                // Whether the API server trusts it, who made it has to see to.
                served.is_complete();
                (before, trouble) = (Some(files), None);
            }
            Err(words) => {
                if trouble.as_ref() != Some(&words) {
                    tracing::warn!(
                        directory = %directory.display(), error = words, "certificate is unusable"
                    );
                }
                served.misses(&words);
                trouble = Some(words);
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

/// What is there, if it is not what was there before.
fn look(directory: &Path, before: Option<&TlsFiles>) -> Result<Option<(TlsFiles, Pair)>, String> {
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
