//! The children of this process: which have ended, and whether one is left.
//!
//! Both processes of `exec` are subreapers, so orphans of the command are their children.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, wait, waitid};

/// Reaps a child that has ended; none if there is none.
pub(super) fn next_ended() -> io::Result<Option<(Pid, ExitStatus)>> {
    match wait(WaitOptions::NOHANG) {
        Ok(ended) => Ok(ended.map(|(pid, status)| (pid, ExitStatus::from_raw(status.as_raw())))),
        Err(Errno::CHILD | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a child is left, running or not.
pub(super) fn has_any() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, options).is_ok()
}
