//! The ports on a real API server: locks and sessions as custom resources, reached with kube.
//!
//! It decides nothing about locks. It does not cache: a GET and a LIST carry no resourceVersion, so
//! the API server returns the newest state. It does not retry: a write without an answer may have
//! been applied, and only the caller knows its own ids. It hides no read inside a write. Each
//! update is one PUT of the status with the resourceVersion that it is based on: that is the
//! compare-and-swap.

pub mod causes;
pub mod certificates;
pub mod client;
pub mod convert;
pub mod errors;
pub mod names;

mod calls;
mod candidates;
mod connection;
mod events;
mod fleet;
mod identity;
mod lock_store;
mod namespaces;
mod pod_labels;
mod refusals;
mod session_store;

pub use candidates::K8sCandidates;
pub use certificates::{K8sCertificates, K8sTrust};
pub use client::connect;
pub use events::K8sEvents;
pub use fleet::K8sFleet;
pub use identity::{Identity, identity};
pub use lock_store::K8sLockStore;
pub use namespaces::K8sNamespaces;
pub use pod_labels::K8sPodLabels;
pub use refusals::K8sRefusals;
pub use session_store::K8sSessionStore;
