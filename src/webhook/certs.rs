//! The certificate that the webhook is served with: made and renewed here, or read from files.
//!
//! `plan` decides, purely; `keeper` does it, on two ports; `issue` makes certificates, `read` reads
//! them; `files` follows a directory; `served` is what connections are answered with.
//!
//! Each certificate is issued by an authority of its own, whose key is gone when it was used. So no
//! key that could issue another one is anywhere, and to trust a new certificate is to trust a new
//! authority: it is published before the certificate is served.

pub mod plan;

mod files;
mod issue;
mod keeper;
mod read;
mod served;

pub use files::follow;
pub use issue::{IssueFailed, issue};
pub use keeper::{Keeper, KeeperPorts};
pub use read::{Pair, Unusable, authorities, pem_of};
pub use served::Served;
