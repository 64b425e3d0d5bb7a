//! What the admission policies and the sidecar's role refuse, and what they let through.
//!
//! Every refusal is checked for the words that tell its reader what to do, and stands beside a
//! write that differs in one thing and is done.

#![allow(
    clippy::panic,
    reason = "a test fails by panicking, also in what it is made of"
)]

mod asked;
mod conditions;
mod grants;
mod objects;
mod operator;
mod operator_grants;
mod operator_locks;
mod ordinary;
mod prefixes;
mod queues;
mod requests;
mod stage;
mod world;
