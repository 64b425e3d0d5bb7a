//! Leasehold: a lock service for Kubernetes. The modules in reading order; ARCHITECTURE.md has
//! the map.

pub mod protocol;

pub mod clock;
pub mod store;

pub mod agent;
pub mod crd;
pub mod k8s;
