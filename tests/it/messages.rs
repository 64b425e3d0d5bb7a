//! What users read: a golden file lists every log message and problem document, so that a change of
//! words is seen in review, and tests hold them to the rules of CONTRIBUTING.md.
//!
//! Log messages are read from the source, because no type lists them; problem documents come from the
//! code that makes the real ones.

mod scan;
mod words;

use std::fmt::Write as _;

use leasehold::http::problem_examples;

use crate::drift::assert_committed;
use scan::{Log, shipped_logs};

#[test]
fn the_committed_list_of_messages_has_not_drifted() {
    assert_committed("tests/golden/messages.txt", &listed(&shipped_logs()));
}

#[test]
fn log_messages_keep_to_the_rules_for_words() {
    let logs = shipped_logs();
    let mut faults = words::two_spellings(&logs);
    for log in &logs {
        let of_it = words::faults_of(log).into_iter();
        faults.extend(of_it.map(|fault| format!("{}: {:?}: {fault}", log.module, log.message)));
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

fn listed(logs: &[Log]) -> String {
    let mut text = String::from(
        "Log messages and problem documents, as `make generate` lists them.\n\n# Log messages\n",
    );
    for log in logs {
        let fields = log.fields.join(", ");
        writeln!(
            text,
            "{}: {} {:?} [{fields}]",
            log.module, log.level, log.message
        )
        .expect("a string takes everything");
    }
    text.push_str("\n# Problem documents\n");
    for document in problem_examples() {
        let field = |name: &str| document[name].as_str().expect("a problem has this text");
        let (code, title, detail) = (field("code"), field("title"), field("detail"));
        writeln!(text, "{} {code}: {title}\n    {detail}", document["status"])
            .expect("a string takes everything");
    }
    text
}
