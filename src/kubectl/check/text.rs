//! The results for a person: a line for each check by sections, as `linkerd check` has them.

use super::{CheckResult, Status, count, counted};
use crate::text::escape;

const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[33m";
const RED: &str = "\u{1b}[31m";
const PLAIN: &str = "\u{1b}[0m";

/// Returns the results as lines. Nothing that the cluster contains can change the terminal.
#[must_use]
pub fn text(results: &[CheckResult], colour: bool) -> String {
    let mut lines = Vec::new();
    let mut section = "";
    for result in results {
        if result.section != section {
            if !section.is_empty() {
                lines.push(String::new());
            }
            section = result.section;
            lines.push(section.to_owned());
            lines.push("-".repeat(section.len()));
        }
        lines.push(format!(
            "{} {}",
            mark(result.status, colour),
            escape(&result.message)
        ));
        if let Some(fix) = &result.fix {
            lines.push(format!("    {}", escape(fix)));
            lines.push(format!("    see {}", result.link));
        }
    }
    lines.push(String::new());
    lines.push(summary(results));
    lines.join("\n") + "\n"
}

fn mark(status: Status, colour: bool) -> String {
    let (mark, code) = match status {
        Status::Ok => ("√", GREEN),
        Status::Warning => ("‼", YELLOW),
        Status::Failed => ("×", RED),
        Status::Skipped => return "-".to_owned(),
    };
    if colour {
        format!("{code}{mark}{PLAIN}")
    } else {
        mark.to_owned()
    }
}

fn summary(results: &[CheckResult]) -> String {
    let number = |status| count(results, status);
    format!(
        "{} ok, {}, {} failed, {} skipped",
        number(Status::Ok),
        counted(number(Status::Warning), "warning"),
        number(Status::Failed),
        number(Status::Skipped)
    )
}
