//! Whether the installation is sound: what `check` has read goes in, results come out, each failure with its fix.
//!
//! Pure. A check whose objects the user must not read is skipped, and names the missing right. A warning is about what
//! works now and may not later; only a failure makes the command fail.

pub mod containers;
pub mod findings;
pub mod text;

mod api_server;
mod clocks;
mod definitions;
mod floors;
mod installation;
mod mode;
mod operator;
mod pod;
mod policies;
mod pre;
mod rights;
mod sidecars;
mod webhook;

#[cfg(test)]
mod tests;

use serde::Serialize;

use findings::{Findings, PreFindings};
pub use rights::rights_of;

/// Where the pages are that the results link to.
const DOCS: &str = "https://github.com/leasehold/leasehold/blob/main/docs/";

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Nothing is wrong.
    Ok,
    /// It works now; the message says what may not.
    Warning,
    /// Something is wrong.
    Failed,
    /// It was not checked, for the reason in the message.
    Skipped,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// The part of the installation.
    pub section: &'static str,
    /// Identifies the check; never changes.
    pub id: &'static str,
    /// How it ended.
    pub status: Status,
    /// What was found, in one sentence.
    pub message: String,
    /// What to do: a command or a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// The page that explains it.
    pub link: String,
}

/// A check: where its results appear, and which page explains them.
#[derive(Clone, Copy, Debug)]
struct Check {
    section: &'static str,
    id: &'static str,
    page: &'static str,
}

impl Check {
    const fn new(section: &'static str, id: &'static str, page: &'static str) -> Self {
        Self { section, id, page }
    }

    fn ok(self, message: impl Into<String>) -> CheckResult {
        self.result(Status::Ok, message.into(), None)
    }

    fn warning(self, message: impl Into<String>, fix: impl Into<String>) -> CheckResult {
        self.result(Status::Warning, message.into(), Some(fix.into()))
    }

    fn failed(self, message: impl Into<String>, fix: impl Into<String>) -> CheckResult {
        self.result(Status::Failed, message.into(), Some(fix.into()))
    }

    /// What it would need is not there.
    fn skipped(self, message: impl Into<String>) -> CheckResult {
        self.result(Status::Skipped, message.into(), None)
    }

    /// The user must not read what it needs.
    fn without_right(self, subject: &str, right: &str) -> CheckResult {
        self.skipped(format!("{subject}: not checked, because {right}"))
    }

    fn result(self, status: Status, message: String, fix: Option<String>) -> CheckResult {
        CheckResult {
            section: self.section,
            id: self.id,
            status,
            message,
            fix,
            link: format!("{DOCS}{}", self.page),
        }
    }
}

/// Checks an installation.
#[must_use]
pub fn run(findings: &Findings) -> Vec<CheckResult> {
    let mut results = api_server::check(&findings.server);
    results.extend(definitions::check(findings));
    results.extend(policies::check(findings));
    results.extend(mode::check(findings));
    results.extend(operator::check(findings));
    results.extend(webhook::check(findings));
    results.extend(rights::check(findings));
    results.extend(sidecars::check(findings));
    results.push(clocks::check(findings));
    results.extend(installation::check(findings));
    results.extend(pod::check(findings));
    results
}

/// Checks a cluster in which the chart is to be installed.
#[must_use]
pub fn run_pre(findings: &PreFindings) -> Vec<CheckResult> {
    let mut results = api_server::check(&findings.server);
    results.extend(pre::check(findings));
    results
}

/// The results if the API server does not answer: nothing else can be checked.
#[must_use]
pub fn unreachable(why: &str) -> Vec<CheckResult> {
    vec![api_server::unreachable(why)]
}

/// Returns the number of results with this status.
#[must_use]
pub fn count(results: &[CheckResult], status: Status) -> usize {
    let with_status = results.iter().filter(|result| result.status == status);
    with_status.count()
}

/// Returns a few names and the number of the others: `a, b, c and 4 more`.
fn some_of<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 3;
    let shown: Vec<_> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    let shown = shown.join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns a number with its noun: `1 pod`, `2 pods`.
fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
