//! The start of the command, and its exit code.

use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus, Stdio};

use nix::unistd::{getpgid, getppid};
use rustix::process::{Pid, getpid};

use super::hold::Lease;
use super::slots::Slot;
use super::{Args, LAUNCH, OWN_BINARY, exit_code, is_in_terminal};
use crate::cli::client::Server;

/// Starts the command, in a group of its own; in a terminal in the group of the first process, so
/// that the terminal and the shell treat both as one job.
pub(super) fn start(
    args: &Args,
    url: &Server,
    (lease, slot): (&Lease, &Slot),
    stdin: Stdio,
) -> anyhow::Result<Pid> {
    let group = if is_in_terminal() {
        getpgid(Some(getppid()))?.as_raw()
    } else {
        0
    };
    let child = Command::new(OWN_BINARY)
        .arg0("leasehold")
        .args([LAUNCH, &getpid().to_string(), "--"])
        .args(&args.command)
        .env("LEASEHOLD_TOKEN", lease.token.to_string())
        .env("LEASEHOLD_LEASE_ID", &lease.id)
        .env("LEASEHOLD_RESOURCE", slot.resource.as_str())
        .env("LEASEHOLD_URL", url.to_string())
        // Of an exec around this one.
        .env_remove("LEASEHOLD_SLOT")
        .envs(
            slot.number
                .map(|number| ("LEASEHOLD_SLOT", number.to_string())),
        )
        .stdin(stdin)
        .process_group(group)
        .spawn()?;
    Ok(Pid::from_child(&child))
}

/// Returns the exit code for a process, as shells do.
pub(super) fn exit_code_of(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.unwrap_or_else(|| exit_code::of_signal(status.signal().unwrap_or_default()))
}
