//! The admission policies and the sidecar's role on a real API server: that they are bound, and what
//! depends on tokens, roles and namespaces. Each refusal has its words, and stands beside a write that is
//! allowed. What each policy decides is evaluated in `tests/policies`, faster and in full.

#![allow(
    clippy::panic,
    reason = "a test fails by panicking, also in what it is made of"
)]

mod bound;
mod conditions;
mod fixture;
mod objects;
mod operator;
mod prefixes;
mod requests;
mod world;
