//! Fast tests that need no control plane, in one binary.

#![cfg(test)]

mod agent;
mod cli;
mod crd_drift;
mod drift;
mod http_api;
mod memory_store;
mod openapi;
mod tidy;
