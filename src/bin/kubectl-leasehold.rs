//! The `kubectl-leasehold` binary, a plugin of kubectl; everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    leasehold::cli::kubectl::run()
}
