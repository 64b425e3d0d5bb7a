//! In a terminal: a narrow table, hostile texts, and the question of `release`. The program `script` of Debian's
//! essential package bsdutils gives the plugin a terminal.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use super::stub::Setup;
use super::{Cluster, PLUGIN};

/// Starts the plugin in a terminal of 40 columns that does not print what is typed.
fn start(cluster: &Cluster, line: &str) -> Child {
    let shell = format!("stty -echo cols 40; exec \"$PLUGIN\" {line}");
    let mut command = Command::new("script");
    command
        .args(["-qec", &shell, "/dev/null"])
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("PLUGIN", PLUGIN)
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
        .spawn()
        .expect("`script` (Debian: bsdutils) must be installed")
}

/// Reads until the output ends with `end`, or to its end.
fn read_until(child: &mut Child, end: Option<&str>) -> Vec<u8> {
    let mut printed = Vec::new();
    let output = child.stdout.as_mut().unwrap();
    let mut byte = [0];
    while output.read(&mut byte).unwrap() == 1 {
        printed.push(byte[0]);
        if end.is_some_and(|end| printed.ends_with(end.as_bytes())) {
            break;
        }
    }
    printed
}

/// Runs the plugin in a terminal, types `answer` when it asks, and compares what is on the screen.
fn golden(cluster: &Cluster, name: &str, line: &str, answer: Option<&str>) {
    let mut child = start(cluster, line);
    let mut printed = Vec::new();
    // Without a line break, `script` keeps reading: its input stays open to the end.
    let mut input = child.stdin.take().unwrap();
    if let Some(answer) = answer {
        printed = read_until(&mut child, Some("release it: "));
        input.write_all(answer.as_bytes()).unwrap();
        printed.extend(b"\r\n");
    }
    printed.extend(read_until(&mut child, None));
    let mut output = child.wait_with_output().unwrap();
    drop(input);
    output.stdout = String::from_utf8(printed)
        .unwrap()
        .replace("\r\n", "\n")
        .into_bytes();
    cluster.compare(
        name,
        &format!("stty cols 40; kubectl leasehold {line}"),
        &output,
    );
}

#[test]
fn narrow_terminal_gets_a_narrow_table() {
    let cluster = Cluster::sound();
    for (name, line) in [
        ("terminal-list", "list"),
        ("terminal-list-all", "list -A"),
        ("terminal-list-wide", "list orders -o wide"),
        ("terminal-sessions", "sessions"),
        ("terminal-elections", "elections"),
        ("terminal-history", "history invoices"),
    ] {
        golden(&cluster, name, line, None);
    }
}

#[test]
fn hostile_text_never_controls_the_terminal() {
    let cluster = Cluster::sound();
    let owner = "list hostile -o jsonpath='{.items[0].status.holder.ownerId}{\"\\n\"}'";
    for (name, line) in [
        ("terminal-hostile-list", "list hostile"),
        ("terminal-hostile-json", "list hostile -o json"),
        ("terminal-hostile-yaml", "list hostile -o yaml"),
        ("terminal-hostile-jsonpath", owner),
        ("terminal-hostile-why", "why hostile -o json"),
    ] {
        golden(&cluster, name, line, None);
    }
}

#[test]
fn release_asks_for_the_name_of_the_lock() {
    let cluster = Cluster::sound();
    golden(
        &cluster,
        "terminal-release-wrong-name",
        "release orders --reason test",
        Some("order\n"),
    );
    golden(
        &cluster,
        "terminal-release-no-name",
        "release orders --reason test",
        Some("\n"),
    );
    assert_eq!(cluster.stub.writes(), []);
    let right = "release orders --reason test --timeout 0";
    golden(
        &cluster,
        "terminal-release-right-name",
        right,
        Some("orders\n"),
    );
    assert_eq!(cluster.stub.writes().len(), 1);
    let cluster = Cluster::with(Setup::default());
    let resource = "release reports/daily --reason test --timeout 0";
    golden(
        &cluster,
        "terminal-release-resource",
        resource,
        Some("reports/daily\n"),
    );
    assert_eq!(cluster.stub.writes().len(), 1);
}
