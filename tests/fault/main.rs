//! Faults on the real control plane: our binaries and the apps as processes, killed, stopped,
//! partitioned, and with wrong clocks. Afterwards the histories of the apps are checked.
//!
//! A seed decides which fault affects which process. When the fault takes effect depends on the
//! machine. `make fault`.

#![cfg(test)]

#[path = "../harness.rs"]
mod harness;
#[path = "../history.rs"]
mod history;
#[path = "../seed.rs"]
mod seed;

mod app;
mod clock;
mod controls;
mod injection;
mod network;
mod recorder;
mod register;
mod run;
mod schedule;
mod stall_detector;
mod stops;
mod test_pod;
mod verdict;
mod world;
