//! The line that a person sees in a terminal while the command waits for the lock.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use rustix::termios::tcgetwinsize;
use tokio::time::{MissedTickBehavior, interval};
use tracing_appender::non_blocking::NonBlocking;

use super::acquire::Progress;
use super::hold::{Holder, Queue};
use crate::cli::output;
use crate::clock::{Clock as _, SystemClock};
use crate::protocol::time::{Moment, WallTime};
use crate::text::{escape, ordinal};

/// How often it is checked for changes.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// The width of a terminal that does not tell it.
const WIDTH: usize = 80;
/// Clears the line of the terminal.
const CLEAR: &str = "\r\x1b[2K";

/// A line on standard error, rewritten in place. Dropping it clears it.
pub(super) struct StatusLine {
    writer: NonBlocking,
    shown: String,
}

/// What the line says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting<'a> {
    pub(super) lock: &'a str,
    pub(super) since: Moment,
    pub(super) holder: Option<&'a Holder>,
    pub(super) queue: Queue,
}

impl StatusLine {
    pub(super) fn new(writer: NonBlocking) -> Self {
        Self {
            writer,
            shown: String::new(),
        }
    }

    /// Shows the progress without end.
    pub(super) async fn show(&mut self, lock: &str, progress: &RefCell<Progress>) -> Infallible {
        let mut ticks = interval(CHECK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let text = progress.borrow().waiting(lock).map(|waiting| {
                let (now, wall) = (SystemClock.now(), SystemClock.wall());
                cut(&waiting.text(now, wall), width())
            });
            self.write(text.unwrap_or_default());
        }
    }

    fn write(&mut self, text: String) {
        if text != self.shown {
            // The cursor goes back, so that a line of the log replaces this one.
            let _lost = write!(self.writer, "{CLEAR}{text}\r");
            self.shown = text;
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.write(String::new());
    }
}

impl Waiting<'_> {
    fn text(&self, now: Moment, wall: WallTime) -> String {
        let mut text = format!("waiting {} for {}", short(now.since(self.since)), self.lock);
        if let Some(holder) = self.holder {
            let _infallible = write!(text, ": held by {}", escape(&holder.owner_id));
            if !holder.pod.is_empty() && holder.pod != holder.owner_id {
                let _infallible = write!(text, " (pod {})", escape(&holder.pod));
            }
            if let Ok(since) = holder.held_since.parse::<jiff::Timestamp>() {
                let held = wall.0.saturating_sub(since.as_microsecond());
                let held = Duration::from_micros(held.try_into().unwrap_or_default());
                let _infallible = write!(text, " for {}", short(held));
            }
        }
        let others = self.queue.length;
        let queue = match self.queue.position.map(usize::try_from) {
            Some(Ok(position)) => format!(", {} in the queue", ordinal(position)),
            _ if others > 0 => format!(", {others} in the queue"),
            // None are known until the own entry is there.
            _ => String::new(),
        };
        text.push_str(&queue);
        text
    }
}

/// Returns a time in one or two units.
fn short(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3_600 => format!("{} min", seconds / 60),
        seconds => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// Shortens a text, so that the terminal does not wrap it: only one line can be cleared.
fn cut(text: &str, width: usize) -> String {
    let room = width.saturating_sub(1);
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(room.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

fn width() -> usize {
    let size = tcgetwinsize(output::standard_error()).map_or(0, |size| size.ws_col);
    match size {
        0 => WIDTH,
        columns => columns.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(holder: Option<&Holder>, position: Option<u64>) -> String {
        let waiting = Waiting {
            lock: "import",
            since: Moment::since_boot(Duration::from_secs(10)),
            holder,
            queue: Queue {
                length: 2,
                position,
            },
        };
        let wall = "2026-11-27T10:04:00Z".parse::<jiff::Timestamp>().unwrap();
        let now = Moment::since_boot(Duration::from_secs(22));
        waiting.text(now, WallTime(wall.as_microsecond()))
    }

    #[test]
    fn line_names_the_holder_and_both_times() {
        assert_eq!(text(None, None), "waiting 12 s for import, 2 in the queue");
        let mut holder = Holder {
            owner_id: "anna".into(),
            pod: "report-x7".into(),
            held_since: "2026-11-27T10:01:00Z".into(),
        };
        assert_eq!(
            text(Some(&holder), Some(3)),
            "waiting 12 s for import: held by anna (pod report-x7) for 3 min, 3rd in the queue"
        );
        holder.owner_id = holder.pod.clone();
        holder.held_since = "2026-11-27T08:01:00Z".into();
        assert_eq!(
            text(Some(&holder), None),
            "waiting 12 s for import: held by report-x7 for 2 h 3 min, 2 in the queue"
        );
    }

    #[test]
    fn line_is_shorter_than_the_terminal() {
        assert_eq!(cut("waiting 12 s for import", 20), "waiting 12 s for i…");
        assert_eq!(cut("waiting", 8), "waiting");
        assert_eq!(cut("waiting", 1), "…");
    }
}
