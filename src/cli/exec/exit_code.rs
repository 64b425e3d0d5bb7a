//! The exit codes of `leasehold exec`: the command's own, and those that say why it was not run to its
//! end. The latter are above all that shells use (128 plus a signal's number is at most 192).

/// Another caller holds the lock, and the command was not run.
pub(super) const HELD: u8 = 200;
/// The lease was lost and the command was ended, or could not be.
pub(super) const LOST: u8 = 201;
/// The lock could not be acquired: no answer, no right, no definition. The command was not run.
pub(super) const UNAVAILABLE: u8 = 202;
/// The command line is wrong. The command was not run.
pub(super) const USAGE: u8 = 203;
/// The command ran for longer than `--max-run` and was ended.
pub(super) const TIMED_OUT: u8 = 204;
/// The command exists and cannot be executed, as in shells.
pub(super) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found, as in shells.
pub(super) const NOT_FOUND: u8 = 127;

/// Returns the exit code for a process that a signal ended, as in shells.
pub(super) fn of_signal(signal: i32) -> u8 {
    u8::try_from(signal).unwrap_or_default().saturating_add(128)
}
