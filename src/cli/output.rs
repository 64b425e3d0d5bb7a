//! The only module that prints.

use std::io::{self, Write};

/// Prints the output of a command.
///
/// # Errors
/// If standard output cannot be written.
pub(super) fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}

/// Returns standard error, for the log of a role that must not wait for its reader.
pub(super) fn standard_error() -> io::Stderr {
    io::stderr()
}

/// Prints an error in one line on standard error.
pub(super) fn error(error: &anyhow::Error) {
    // Without standard error, only the exit code reports the failure.
    let _unheard = writeln!(io::stderr().lock(), "error: {error:#}");
}
