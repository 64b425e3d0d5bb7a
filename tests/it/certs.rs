//! The certificate of the webhook: what is decided about it, what several replicas make of that
//! together, and what connections see.

mod files;
mod keeper;
mod plan;
mod stores;
mod tls;
