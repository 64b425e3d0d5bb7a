//! Issues a certificate by its own CA, whose key is discarded.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use super::plan::BACKDATED;
use crate::store::certificates::TlsFiles;

/// A certificate could not be issued.
#[derive(Debug, thiserror::Error)]
#[error("a certificate cannot be made")]
pub struct IssueError(#[from] rcgen::Error);

/// Issues a certificate for these names (DNS names or addresses). It is valid for `life` from `now`
/// on, in seconds since 1970.
///
/// # Errors
/// If a name is invalid, or the system provides no random numbers.
pub fn issue(names: &[String], life: Duration, now: i64) -> Result<TlsFiles, IssueError> {
    let valid = Validity::new(life, now);
    let authority_key = KeyPair::generate()?;
    let mut authority = valid.params(Vec::new(), "leasehold webhook authority")?;
    // The CA issues this one certificate, and no other CA.
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority_certificate = authority.self_signed(&authority_key)?;

    let key = KeyPair::generate()?;
    let mut params = valid.params(names.to_vec(), "leasehold webhook")?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = params.signed_by(&key, &Issuer::new(authority, authority_key))?;
    Ok(TlsFiles {
        certificate: certificate.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
        authority: authority_certificate.pem().into_bytes(),
    })
}

struct Validity {
    from: u64,
    until: u64,
}

impl Validity {
    fn new(life: Duration, now: i64) -> Self {
        let now = u64::try_from(now).unwrap_or_default();
        Self {
            from: now.saturating_sub(BACKDATED.as_secs()),
            until: now.saturating_add(life.as_secs()),
        }
    }

    fn params(&self, names: Vec<String>, subject: &str) -> Result<CertificateParams, rcgen::Error> {
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        let mut params = CertificateParams::new(names)?;
        params.not_before = epoch + Duration::from_secs(self.from);
        params.not_after = epoch + Duration::from_secs(self.until);
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject);
        Ok(params)
    }
}
