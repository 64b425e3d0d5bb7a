//! The command line: one composition root a role, and the only place that joins the agent, the
//! store and the servers.
//!
//! Exit codes: 0 after a clean stop, 1 when something failed (one line on standard error says
//! what to do), 2 for a wrong command line, 128 and the signal's number after a second signal.

mod cluster;
mod crd;
mod listen;
mod output;
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
    /// Prints the custom resource definitions, for `kubectl apply --server-side -f -`.
    Crd,
}

/// Runs what the command line asks for.
#[must_use]
pub fn run() -> ExitCode {
    let done = match Cli::parse().role {
        Role::Sidecar(args) => match args.agent_config() {
            Ok(config) => sidecar::run(*args, config),
            Err(words) => Cli::command()
                .error(ErrorKind::ValueValidation, words)
                .exit(),
        },
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
