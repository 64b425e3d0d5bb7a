//! The certificate of the webhook: the decisions, several replicas together, and the behavior of
//! connections.

mod files;
mod keeper;
mod plan;
mod stores;
mod tls;
