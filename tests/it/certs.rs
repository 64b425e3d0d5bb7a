//! The certificate of the webhook: decisions about it, several replicas together, and what connections see.

mod files;
mod keeper;
mod plan;
mod stores;
mod tls;
