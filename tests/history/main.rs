//! Histories and their checkers: each check accepts correct histories and refuses wrong ones.

#![cfg(test)]

#[path = "../history.rs"]
mod history;

mod builder;
mod files;
mod given;
mod right;
mod wrong;
