//! The ports of the webhook's certificate: its Secret, and the configuration with the CA that the
//! API server trusts.
//!
//! Every write is a compare-and-swap on the version that was read.

use std::fmt;

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::{StoreError, Stored};

/// The content of a TLS Secret as PEM files; empty if a file is missing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// `tls.crt`: the certificate and the intermediate ones.
    pub certificate: Vec<u8>,
    /// `tls.key`.
    pub key: Vec<u8>,
    /// `ca.crt`: the CA that issued it.
    pub authority: Vec<u8>,
}

/// The key is not part of it.
impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Files")
    }
}

/// Notifies that something may have changed, but not what: the receiver reads again. The stream
/// continues after failures, and notifies of them, too.
pub type Changes = BoxStream<'static, ()>;

/// The Secret of the certificate.
#[async_trait]
pub trait CertificateStore: Send + Sync + 'static {
    /// Returns its current content; `None` if it does not exist.
    async fn get(&self) -> Result<Option<Stored<TlsFiles>>, StoreError>;

    /// Creates it. `Conflict` if it exists.
    async fn create(&self, files: &TlsFiles) -> Result<(), StoreError>;

    /// Replaces the files, if it is still at `current`'s version; everything else in it stays.
    async fn update(&self, current: &Stored<TlsFiles>, next: &TlsFiles) -> Result<(), StoreError>;

    /// Returns notifications of possible changes.
    fn changes(&self) -> Changes;
}

/// The webhook configuration: for each of its webhooks, the CA bundle that the API server trusts,
/// in PEM.
#[async_trait]
pub trait TrustStore: Send + Sync + 'static {
    /// Returns the current bundles; `None` if the configuration does not exist.
    async fn get(&self) -> Result<Option<Stored<Vec<Vec<u8>>>>, StoreError>;

    /// Replaces the bundles of the webhooks that have a new one, if it is still at `current`'s
    /// version. Everything else in it stays.
    async fn update(
        &self,
        current: &Stored<Vec<Vec<u8>>>,
        next: &[Option<Vec<u8>>],
    ) -> Result<(), StoreError>;

    /// Returns notifications of possible changes.
    fn changes(&self) -> Changes;
}
