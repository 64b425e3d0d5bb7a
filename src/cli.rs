//! The command line: one composition root a role, and the only place that joins the agent, the
//! store and the servers.
//!
//! Exit codes: 0 after a clean stop, 1 when something failed (one line on standard error says
//! what to do), 2 for a wrong command line, 128 and the signal's number after a second signal.

mod cluster;
mod crd;
mod dev;
mod elections;
mod file_limit;
mod flags;
mod listen;
mod log;
mod operator;
mod output;
mod pod;
mod serve;
mod sidecar;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

/// A lock service for Kubernetes: leases, fencing tokens and a small HTTP API on localhost.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serves locks to the apps of one pod.
    Sidecar(Box<sidecar::Args>),
    /// Clears what dead holders leave behind, carries out what people force, and keeps the record;
    /// for a whole cluster.
    Operator(Box<operator::Args>),
    /// Serves locks without a cluster, from a directory of this machine: to try it out, for tests,
    /// and for apps that share one machine.
    Dev(Box<dev::Args>),
    /// Prints the custom resource definitions, for `kubectl apply --server-side -f -`.
    Crd,
}

/// Runs what the command line asks for.
#[must_use]
pub fn run() -> ExitCode {
    let done = match Cli::parse().role {
        Role::Sidecar(args) => sidecar::run(&args, or_usage_error(args.agent_config())),
        Role::Operator(args) => operator::run(&args, or_usage_error(args.agent_config())),
        Role::Dev(args) => dev::run(&args, or_usage_error(args.agent_config())),
        Role::Crd => crd::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

/// What flags come to together, or the end.
fn or_usage_error<T>(config: Result<T, String>) -> T {
    config.unwrap_or_else(|words| {
        Cli::command()
            .error(ErrorKind::ValueValidation, words)
            .exit()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
