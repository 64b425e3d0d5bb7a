//! The manual pages, made from the command line's definition.

use std::path::PathBuf;

use super::failure::Failure;

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The directory.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Writes `kubectl-leasehold.1`, and a page for each command.
pub(super) fn run(plugin: clap::Command, args: &Args) -> Result<(), Failure> {
    clap_mangen::generate_to(plugin, &args.directory).map_err(Failure::Output)
}
