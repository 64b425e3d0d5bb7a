//! The webhook's ports: the Secret that its certificate is in, and the configuration by which the API
//! server trusts it.
//!
//! A write is a compare-and-swap on the version that was read, as everywhere.

use std::fmt;

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::{StoreError, Stored};

/// What a TLS Secret has in it, each a file in PEM; empty where it is not there.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// `tls.crt`: the certificate, and those between it and an authority.
    pub certificate: Vec<u8>,
    /// `tls.key`.
    pub key: Vec<u8>,
    /// `ca.crt`: the authority that issued it.
    pub authority: Vec<u8>,
}

/// The key is never shown.
impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Files")
    }
}

/// Tells that something may have changed, never what: who hears it reads anew. It goes on through
/// every failure, which is a reason to read, too.
pub type Changes = BoxStream<'static, ()>;

/// The one Secret.
#[async_trait]
pub trait CertificateStore: Send + Sync + 'static {
    /// What is in it now; none when it is not there.
    async fn get(&self) -> Result<Option<Stored<TlsFiles>>, StoreError>;

    /// Makes it. `Conflict` when it is there.
    async fn create(&self, files: &TlsFiles) -> Result<(), StoreError>;

    /// Replaces the files, if it is still at `current`'s version; all else in it stays.
    async fn update(&self, current: &Stored<TlsFiles>, next: &TlsFiles) -> Result<(), StoreError>;

    /// When it may have changed.
    fn changes(&self) -> Changes;
}

/// The one configuration: for each of its webhooks, the authorities that the API server trusts
/// there, in PEM as they stand.
#[async_trait]
pub trait TrustStore: Send + Sync + 'static {
    /// What it says now; none when it is not there.
    async fn get(&self) -> Result<Option<Stored<Vec<Vec<u8>>>>, StoreError>;

    /// Replaces the authorities of those webhooks for which there are new ones, if it is still at
    /// `current`'s version. Nothing else in it is touched.
    async fn update(
        &self,
        current: &Stored<Vec<Vec<u8>>>,
        next: &[Option<Vec<u8>>],
    ) -> Result<(), StoreError>;

    /// When it may have changed.
    fn changes(&self) -> Changes;
}
