//! Faults on the real control plane: our binaries and the apps as processes, killed, stopped, cut off and
//! lied to, for as long as is asked, and then what the apps believed, wrote and were told is checked.
//!
//! One seed decides what is done to whom; when it takes effect is up to the machine. `make fault`.

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
mod journal;
mod network;
mod pulse;
mod register;
mod run;
mod schedule;
mod seat;
mod stops;
mod strike;
mod verdict;
mod world;
