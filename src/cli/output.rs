//! The only place that prints.

use std::io::{self, Write};

/// Prints what a command was asked for.
///
/// # Errors
/// When standard output cannot be written.
pub(super) fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}

/// Says in one line on standard error why a command failed.
pub(super) fn error(error: &anyhow::Error) {
    // Where even standard error is gone, the exit code has to do.
    let _unheard = writeln!(io::stderr().lock(), "error: {error:#}");
}
