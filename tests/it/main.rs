//! Fast tests that need no control plane, in one binary.

#![cfg(test)]

mod agent;
mod alerts;
mod certs;
mod chart;
mod cli;
mod client_types;
mod clients;
#[path = "../contract.rs"]
mod contract;
mod crd_drift;
mod dev;
mod docs;
mod drift;
mod embedded_store;
mod faulty_store;
mod fence;
mod fences;
mod http_api;
mod kubectl;
#[path = "../markdown.rs"]
mod markdown;
mod memory_store;
mod messages;
mod openapi;
mod operator;
mod paused_clock;
#[path = "../pods.rs"]
mod pods;
mod rights;
#[path = "../seed.rs"]
mod seed;
mod seeded;
mod tidy;
mod webhook;
