//! Leasehold: a lock service for Kubernetes. The modules in reading order; ARCHITECTURE.md has
//! the map.

pub mod protocol;

pub mod clock;
pub mod pause;
pub mod random;
pub mod store;
pub mod text;

pub mod agent;
pub mod crd;
pub mod fence;
pub mod http;
pub mod k8s;
pub mod kubectl;
pub mod operator;
pub mod webhook;

pub mod admin;
pub mod cli;
pub mod shutdown;
pub mod state_file;
pub mod telemetry;
