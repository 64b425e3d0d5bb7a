//! The certificate of the webhook: issued and renewed here, or read from files.
//!
//! `plan` decides, purely; `rotator` acts, on two ports. `issue` creates certificates, and `read`
//! reads them. `files` watches a directory, and `served` has the certificate for connections.
//!
//! Each certificate has its own CA, whose key is discarded after use. So no key exists that could
//! issue another one. To trust a new certificate is to trust a new CA, which is published before
//! the certificate is served.

pub mod plan;

mod files;
mod issue;
mod read;
mod rotator;
mod served;

pub use files::follow;
pub use issue::{IssueError, issue};
pub use read::{InvalidCertificate, Pair, authorities, pem_of};
pub use rotator::{Rotator, RotatorPorts};
pub use served::ServedCertificate;
