//! The texts that users read. A golden file lists every log message and problem document, so that a
//! review shows a change of a text. The tests check them against the rules of CONTRIBUTING.md.
//!
//! Log messages are read from the source, because no type lists them. The problem documents come
//! from the same code as the real ones.

mod scan;
mod words;

pub(crate) use words::retired_in;

use std::fmt::Write as _;
use std::process::Command;

use leasehold::crd;
use leasehold::http::{openapi_document, problem_examples};

use crate::drift::{assert_committed, assert_committed_part};
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

#[test]
fn problem_documents_have_no_retired_words() {
    for document in problem_examples() {
        for field in ["title", "detail"] {
            let text = document[field].as_str().unwrap();
            assert_eq!(words::retired_in(text), Vec::<String>::new(), "{text}");
        }
    }
}

#[test]
fn api_description_has_no_retired_words() {
    let description = openapi_document();
    assert_eq!(words::retired_in(&description), Vec::<String>::new());
}

/// Returns the help of each command. Its width does not depend on the terminal.
fn help() -> String {
    let mut text = String::new();
    for command in [
        "", "sidecar", "operator", "dev", "exec", "health", "gate", "crd",
    ] {
        let mut leasehold = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        leasehold.args((!command.is_empty()).then_some(command));
        let output = leasehold.arg("--help").env_clear().output().unwrap();
        assert!(output.status.success(), "leasehold {command} --help");
        writeln!(text, "$ leasehold {command} --help").expect("a string takes everything");
        text.push_str(&String::from_utf8(output.stdout).unwrap());
        text.push('\n');
    }
    text
}

#[test]
fn the_committed_help_has_not_drifted() {
    assert_committed("tests/golden/help.txt", &help());
}

#[test]
fn help_has_no_retired_words() {
    assert_eq!(words::retired_in(&help()), Vec::<String>::new());
    assert_eq!(words::retired_in(&plugin_help()), Vec::<String>::new());
}

/// Returns the help of the plugin and its commands, as its page has it. The flags of all commands are in the first part.
fn plugin_help() -> String {
    let help_of = |command: &str| {
        let mut plugin = Command::new(env!("CARGO_BIN_EXE_kubectl-leasehold"));
        plugin.args((!command.is_empty()).then_some(command));
        let output = plugin.arg("-h").env_clear().output().unwrap();
        assert!(output.status.success(), "kubectl leasehold {command} -h");
        String::from_utf8(output.stdout).unwrap()
    };
    let whole = help_of("");
    let commands = whole.split_once("Commands:\n").unwrap().1;
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let commands = commands.filter_map(|line| line.split_whitespace().next());
    let mut text = format!("```text\n{whole}```\n");
    for command in commands.filter(|command| *command != "help") {
        let own = help_of(command);
        let (before, after) = own.split_once("Cluster:\n").unwrap();
        let rights = after.split_once("\n\n").map_or("", |(_, rest)| rest);
        let own = format!("{}\n\n{rights}", before.trim_end());
        let own = own.trim_end();
        write!(text, "\n### {command}\n\n```text\n{own}\n```\n")
            .expect("a string takes everything");
    }
    text
}

#[test]
fn help_of_the_plugin_on_its_page_has_not_drifted() {
    assert_committed_part("docs/kubectl.md", "help", &plugin_help());
}

#[test]
fn definitions_have_no_retired_words() {
    for definition in [
        crd::lock_as_yaml().unwrap(),
        crd::session_as_yaml().unwrap(),
    ] {
        assert_eq!(words::retired_in(&definition), Vec::<String>::new());
    }
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
