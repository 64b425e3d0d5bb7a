//! What the plugin prints, and the width of the terminal.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use serde::Serialize;

use super::failure::Failure;
use super::flags::Document;
use crate::kubectl::world::World;
use crate::text::escape_lines;

/// The runtime of a command, which does one thing after the other.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build();
    runtime.map_err(|error| Failure::Usage(format!("cannot start: {error}")))
}

/// Prints data. Texts of objects cannot control a terminal; a pipe and a file get them unchanged.
///
/// # Errors
/// `OutputClosed` if the reader has left.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() {
        escape_lines(text)
    } else {
        text.into()
    };
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Prints a document.
///
/// # Errors
/// As [`print`].
pub(super) fn print_document(format: Document, document: &impl Serialize) -> Result<(), Failure> {
    let text = match format {
        Document::Json => serde_json::to_string_pretty(document)
            .map(|text| text + "\n")
            .map_err(io::Error::other),
        Document::Yaml => serde_yaml::to_string(document).map_err(io::Error::other),
    };
    print(&text?)
}

/// Prints a line for a person, beside the data.
pub(super) fn complain(text: &str) {
    // Without standard error, only the exit code reports the failure.
    let _unheard = writeln!(io::stderr().lock(), "{}", escape_lines(text));
}

/// Says why the states of sessions are unknown, if they are.
pub(super) fn warn_of_unknown_sessions(world: &World) {
    if let Some(why) = world.sessions.unknown() {
        complain(&format!(
            "warning: the state of the sessions is unknown: {why}"
        ));
    }
}

/// Returns the width of the terminal that standard output is; `None` if it is a file or a pipe.
pub(super) fn width() -> Option<usize> {
    let out = io::stdout();
    if !out.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&out).ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Asks the user to type the name of the lock, or its resource.
///
/// # Errors
/// If the answer is another one, or if standard input is not a terminal.
pub(super) fn confirm(name: &str, resource: &str) -> Result<(), Failure> {
    let input = io::stdin();
    if !input.is_terminal() {
        return Err(Failure::Usage(
            "nothing was done: confirm with --yes, since standard input is not a terminal"
                .to_owned(),
        ));
    }
    // Not on standard output, which may be a pipe.
    let mut out = io::stderr().lock();
    write!(out, "Type the name of the lock to release it: ").map_err(Failure::Output)?;
    out.flush().map_err(Failure::Output)?;
    let mut answer = String::new();
    input
        .lock()
        .read_line(&mut answer)
        .map_err(Failure::Output)?;
    let answer = answer.trim();
    if answer == name || answer == resource {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "nothing was done: the lock's name is {name}"
    )))
}

/// Returns whether standard output shows colours: it is a terminal, and the user has not turned them off
/// (<https://no-color.org>).
pub(super) fn has_colour() -> bool {
    let is_off = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    !is_off && !is_dumb && io::stdout().is_terminal()
}
