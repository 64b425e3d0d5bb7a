//! Reads certificates and CA bundles.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::plan::{Authority, Bundle, Certificate};
use crate::store::certificates::TlsFiles;

/// Why a certificate with its key cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCertificate {
    /// A file cannot be read.
    #[error("{file} has no {what} in PEM that can be read")]
    Unreadable {
        /// The file.
        file: &'static str,
        /// The expected content.
        what: &'static str,
    },
    /// The key belongs to another certificate.
    #[error("tls.key is not the key of tls.crt")]
    KeyMismatch,
    /// It is not valid for a name, or was not issued by its CA.
    #[error("tls.crt is not valid for {name} with ca.crt: {why}")]
    NotFor {
        /// The name.
        name: String,
        /// The error of rustls.
        why: String,
    },
}

const fn unreadable(file: &'static str, what: &'static str) -> InvalidCertificate {
    InvalidCertificate::Unreadable { file, what }
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Pair {
    pub(super) key: Arc<CertifiedKey>,
    /// In seconds since 1970.
    pub(super) not_before: i64,
    pub(super) not_after: i64,
}

impl Pair {
    /// Reads `tls.crt` and `tls.key`.
    ///
    /// # Errors
    /// [`InvalidCertificate`], which names the problem.
    pub fn read(files: &TlsFiles) -> Result<Self, InvalidCertificate> {
        let no_chain = unreadable("tls.crt", "certificate");
        let no_key = unreadable("tls.key", "key");
        let chain = chain(&files.certificate).ok_or(no_chain.clone())?;
        let (not_before, not_after) = validity(&chain[0]).ok_or(no_chain)?;
        let key = PrivateKeyDer::from_pem_slice(&files.key).map_err(|_| no_key.clone())?;
        let key = ring::sign::any_supported_type(&key).map_err(|_| no_key)?;
        let key = CertifiedKey::new(chain, key);
        match key.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(_) => return Err(InvalidCertificate::KeyMismatch),
        }
        Ok(Self {
            key: Arc::new(key),
            not_before,
            not_after,
        })
    }

    /// Returns from when until when the certificate is valid, in seconds since 1970.
    #[must_use]
    pub const fn validity(&self) -> (i64, i64) {
        (self.not_before, self.not_after)
    }

    /// Reads them and `ca.crt`, which must be the single CA that issued the certificate for all
    /// these names.
    ///
    /// # Errors
    /// [`InvalidCertificate`], which names the problem.
    pub fn read_for(
        files: &TlsFiles,
        names: &[String],
    ) -> Result<(Self, Certificate), InvalidCertificate> {
        let pair = Self::read(files)?;
        let no_authority = unreadable("ca.crt", "single authority's certificate");
        let authorities = authorities(&files.authority).unwrap_or_default();
        let [authority] = &authorities[..] else {
            return Err(no_authority);
        };
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from(&*authority.der).into_owned())
            .map_err(|_| no_authority.clone())?;
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|_| no_authority)?;
        for name in names {
            let check = || {
                let server = ServerName::try_from(name.as_str()).map_err(|e| e.to_string())?;
                // Its validity at the current time is checked elsewhere.
                let at = UnixTime::since_unix_epoch(Duration::from_secs(
                    u64::try_from(pair.not_before).unwrap_or_default(),
                ));
                let (first, between) = pair.key.cert.split_first().ok_or("there is none")?;
                let checked = verifier.verify_server_cert(first, between, &server, &[], at);
                checked.map(drop).map_err(|error| error.to_string())
            };
            check().map_err(|why: String| InvalidCertificate::NotFor {
                name: name.clone(),
                why,
            })?;
        }
        let certificate = Certificate {
            der: pair.key.cert[0].as_ref().into(),
            authority: authority.clone(),
            not_before: pair.not_before,
            not_after: pair.not_after,
        };
        Ok((pair, certificate))
    }
}

/// Reads at least one certificate; `None` if any cannot be read.
fn chain(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    chain.ok().filter(|chain| !chain.is_empty())
}

/// Returns the validity of a certificate, in seconds since 1970.
fn validity(der: &[u8]) -> Option<(i64, i64)> {
    let (rest, read) = X509Certificate::from_der(der).ok()?;
    let validity = read.validity();
    rest.is_empty().then(|| {
        (
            validity.not_before.timestamp(),
            validity.not_after.timestamp(),
        )
    })
}

/// Reads a CA bundle in PEM; `None` if it is empty or cannot be read.
#[must_use]
pub fn authorities(pem: &[u8]) -> Bundle {
    let each = chain(pem)?.into_iter().map(|der| {
        let (_, not_after) = validity(&der)?;
        Some(Authority {
            der: der.as_ref().into(),
            not_after,
        })
    });
    each.collect()
}

/// Encodes a CA bundle as PEM (RFC 7468).
#[must_use]
pub fn pem_of(authorities: &[Authority]) -> Vec<u8> {
    let each = authorities.iter().map(|authority| {
        let block = pem::Pem::new("CERTIFICATE", &*authority.der);
        pem::encode_config(
            &block,
            pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
        )
    });
    each.collect::<String>().into_bytes()
}
