//! Violations: a message, and the lines that show it.

use std::fmt;

use super::file::History;

/// Something in a history that is impossible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The message.
    pub(crate) what: String,
    /// The events that show it, each with its position.
    pub(crate) lines: Vec<String>,
}

impl Violation {
    pub(super) fn of(history: &History, what: String, events: &[usize]) -> Self {
        let mut events = events.to_vec();
        events.sort_unstable();
        events.dedup();
        let lines = events.iter().map(|&event| {
            let json = serde_json::to_string(&history.events[event]).unwrap_or_default();
            format!("{} {json}", history.place(event))
        });
        Self {
            what,
            lines: lines.collect(),
        }
    }

    /// Returns a violation shown by an event that is too long to print.
    pub(super) fn told(history: &History, what: String, event: usize) -> Self {
        Self {
            what,
            lines: vec![history.place(event)],
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        for line in &self.lines {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}
