//! Our binaries as separate processes against a real kube-apiserver on a real etcd. Every agent
//! has a token bound to its own pod, the sidecar's role and the admission policies as they ship.

#![cfg(test)]

#[path = "../contract.rs"]
mod contract;
#[path = "../harness.rs"]
mod harness;
#[path = "../history.rs"]
mod history;
#[path = "../pods.rs"]
mod pods;
#[path = "../seed.rs"]
mod seed;
mod support;

mod basics;
mod chart;
mod client_libraries;
mod clients;
mod connections;
mod contention;
mod crowd;
mod election;
mod exec;
mod faults;
mod fences;
mod fleet;
mod floor;
mod gate;
mod hold;
mod idle;
mod injection;
mod kubectl;
mod kubectl_check;
mod lost_answers;
mod managed_fields;
mod many_locks;
mod operator;
mod page;
mod plain_writes;
mod policies;
mod refusals;
mod refused_writes;
mod release_requests;
mod restore;
mod resume;
mod reuse;
mod store;
mod store_contract;
mod take_over;
mod token_floor;
mod upgrade;
mod waiting;
mod webhook;
