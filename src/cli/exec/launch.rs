//! Becomes the command: a step between the keeper and the command, in the process that will be it.
//!
//! It asks the kernel to kill this process with its parent, and executes the command. So the command
//! also ends if both processes of `exec` are killed at once.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::sys::signal::SigSet;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::exit_code;
use crate::cli::output;

/// The arguments, which the keeper gives.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The keeper's process id.
    keeper: i32,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Executes the command. Returns only if that fails.
pub(in crate::cli) fn run(args: &Args) -> ExitCode {
    let asked = set_parent_process_death_signal(Some(Signal::KILL));
    // The keeper may have ended before.
    if asked.is_err() || getppid() != Pid::from_raw(args.keeper) {
        return exit_code::LOST.into();
    }
    // The keeper's signal mask is inherited. The command begins with none, as from a shell.
    if SigSet::empty().thread_set_mask().is_err() {
        return exit_code::UNAVAILABLE.into();
    }
    let Some((program, rest)) = args.command.split_first() else {
        return exit_code::USAGE.into();
    };
    let error = Command::new(program).args(rest).exec();
    let name = program.display();
    let (code, sentence) = match error.kind() {
        ErrorKind::NotFound if Path::new(program).exists() => (
            exit_code::NOT_FOUND,
            format!("{name} cannot be executed: its interpreter was not found"),
        ),
        ErrorKind::NotFound => (
            exit_code::NOT_FOUND,
            format!("{name}: command not found; give a path, or a program in PATH"),
        ),
        _ => (
            exit_code::NOT_EXECUTABLE,
            format!("{name} cannot be executed: {error}"),
        ),
    };
    output::error(&anyhow::anyhow!(sentence));
    code.into()
}
