//! The commands that list: `list` in each format, `sessions`, `elections` and `version`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use super::stub::{Change, Setup};
use super::{Cluster, words};

#[test]
fn locks_are_listed_as_tables() {
    let cluster = Cluster::sound();
    for (name, line) in [
        ("list", "list"),
        ("list-prefix", "list step-"),
        ("list-prefix-none", "list nothing/"),
        ("list-all-namespaces", "list -A orders"),
        ("list-namespace", "list -n other"),
        ("list-context", "--context other list"),
        ("list-selector", "list -l team=checkout"),
        ("list-wide", "list -o wide"),
        ("list-no-headers", "list account --no-headers"),
        ("list-sort-by", "list --sort-by .status.token step-"),
        ("list-sort-by-braces", "list --sort-by='{.spec.resource}' a"),
        ("list-empty", "list -n empty"),
    ] {
        cluster.golden(name, line);
    }
    let cluster = Cluster::with(Setup {
        empty: true,
        ..Setup::default()
    });
    cluster.golden("list-empty-everywhere", "list -A");
    cluster.golden("list-empty-json", "list -o json");
}

#[test]
fn list_has_the_objects_of_all_pages() {
    let cluster = Cluster::with(Setup {
        page: 4,
        ..Setup::default()
    });
    cluster.golden("list", "list");
    cluster.golden("sessions", "sessions");
}

#[test]
fn requests_impersonate_the_user_of_as() {
    let cluster = Cluster::sound();
    let line = "list --as jane --as-group admins --as-group auditors";
    let output = cluster.command(&words(line)).output().unwrap();
    assert!(output.status.success());
    assert_eq!(cluster.stub.header("impersonate-user"), ["jane"]);
    let groups = cluster.stub.header("impersonate-group");
    assert_eq!(groups, ["admins", "auditors"]);
}

#[test]
fn locks_are_listed_in_kubectls_formats() {
    let cluster = Cluster::sound();
    let range = "{range .items[*]}{.metadata.name}={.status.token}{\"\\n\"}{end}";
    let jsonpath = format!("list step- -o jsonpath='{range}'");
    for (name, line) in [
        ("list-json", "list orders -o json"),
        ("list-yaml", "list catalog/ -o yaml"),
        ("list-name", "list account -o name"),
        ("list-jsonpath", jsonpath.as_str()),
        (
            "list-custom-columns",
            "list step- -o custom-columns=LOCK:.metadata.name,POD:.status.holder.pod,NEXT:.status.waiters[0].pod",
        ),
        (
            "list-custom-columns-hostile",
            "list hostile -o custom-columns=OWNER:.status.holder.ownerId",
        ),
        ("list-unknown-format", "list -o toml"),
        ("list-jsonpath-bad", "list -o jsonpath='{.items[*'"),
        ("list-jsonpath-none", "list -o jsonpath"),
        ("list-custom-columns-bad", "list -o custom-columns=NAME"),
    ] {
        cluster.golden(name, line);
    }
}

#[test]
fn script_gets_hostile_text_unchanged() {
    let cluster = Cluster::sound();
    let output = cluster.command(&words("list hostile -o json")).output();
    let list: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
    let holder = &list["items"][0]["status"]["holder"];
    assert_eq!(holder["ownerId"], "evil\u{1b}[2J\nroot");
    assert_eq!(holder["node"], "node\u{202e}-1");
}

#[test]
fn sessions_elections_and_versions_are_listed() {
    let cluster = Cluster::sound();
    for (name, line) in [
        ("sessions", "sessions"),
        ("sessions-all-namespaces", "sessions -A --no-headers"),
        ("sessions-wide", "sessions -o wide"),
        ("sessions-name", "sessions -o name"),
        (
            "sessions-columns",
            "sessions -o custom-columns=POD:.spec.pod,TTL:.spec.ttlSeconds",
        ),
        ("elections-name", "elections -A -o name"),
        ("top-name", "top --count 2 -o name"),
        ("sessions-none", "sessions -n empty"),
        ("elections", "elections"),
        ("elections-all-namespaces", "elections -A"),
        ("elections-none", "elections -n other"),
        ("version", "version"),
        ("version-client", "version --client"),
        ("version-client-json", "version --client -o json"),
        ("version-yaml", "version -A -o yaml"),
        ("version-none", "version -n empty"),
    ] {
        cluster.golden(name, line);
    }
    let cluster = Cluster::with(Setup {
        empty: true,
        ..Setup::default()
    });
    cluster.golden("version-no-operator", "version");
}

/// Runs a watch until it has printed this number of lines, and compares them.
fn watched(cluster: &Cluster, name: &str, line: &str, lines: usize) {
    let mut child = cluster
        .command(&words(line))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut printed = Vec::new();
    for _ in 0..lines {
        assert_ne!(reader.read_until(b'\n', &mut printed).unwrap(), 0);
    }
    child.kill().unwrap();
    let mut output = child.wait_with_output().unwrap();
    output.stdout = printed;
    cluster.compare(name, &format!("kubectl leasehold {line}"), &output);
}

#[test]
fn watched_list_continues_with_each_change() {
    let holder = json!({"ownerId": "worker-2", "pod": "worker-b", "podUid": "uid-worker-b", "session": "worker-b-s"});
    let lease = json!({"id": "wait-worker-b", "acquiredAt": "2026-03-02T12:00:00Z"});
    let setup = Setup {
        on_watch: vec![
            Change {
                lock: "orders",
                patch: Some(
                    json!({"status": {"holder": holder, "lease": lease, "token": 43, "waiters": []}}),
                ),
            },
            Change {
                lock: "step-1",
                patch: Some(json!({"status": {"holder": null, "lease": null}})),
            },
            Change {
                lock: "step-2",
                patch: None,
            },
        ],
        ..Setup::default()
    };
    for (name, line, lines) in [
        ("list-watch", "list orders -w", 3),
        ("list-watch-free", "list step-1 --watch", 3),
        ("list-watch-deleted", "list step-2 --watch", 3),
        ("list-watch-name", "list orders -w -o name", 2),
    ] {
        watched(&Cluster::with(setup.clone()), name, line, lines);
    }
}
