//! Histories and their checkers: each check passes what is right and fails what is wrong.

#![cfg(test)]

#[path = "../history.rs"]
mod history;

mod builder;
mod files;
mod given;
mod right;
mod wrong;
