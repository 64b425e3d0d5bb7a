//! What goes wrong: no definitions, no rights, no answer, bad answers, wrong command lines and a closed output.

use std::fs::File;
use std::process::Stdio;

use tokio::net::TcpSocket;

use super::stub::{Answers, Setup};
use super::{Cluster, kubeconfig, words};

/// The commands that read, each with the name of its goldens.
const READING: [(&str, &str); 9] = [
    ("list", "list step-"),
    ("why", "why orders --pod worker-b"),
    ("describe", "describe orders"),
    ("history", "history invoices"),
    ("wait", "wait orders --for=free --timeout=0"),
    ("release", "release orders --reason test"),
    ("sessions", "sessions"),
    ("elections", "elections"),
    ("version", "version"),
];

#[test]
fn commands_work_with_the_right_to_read_locks_alone() {
    let cluster = Cluster::with(Setup {
        forbidden: vec!["locksessions", "pods", "nodes", "events"],
        ..Setup::default()
    });
    for (command, line) in READING {
        let name = match command {
            "list" => "only-locks-list",
            "why" => "only-locks-why",
            "describe" => "only-locks-describe",
            "history" => "only-locks-history",
            "wait" => "only-locks-wait",
            "release" => "only-locks-release",
            "sessions" => "only-locks-sessions",
            "elections" => "only-locks-elections",
            _ => "only-locks-version",
        };
        cluster.golden(name, line);
    }
    let cluster = Cluster::with(Setup {
        forbidden: vec!["nodes"],
        ..Setup::default()
    });
    cluster.golden("no-nodes-why", "why orders");
}

#[test]
fn missing_right_is_named_with_its_cluster_role() {
    let cluster = Cluster::with(Setup {
        forbidden: vec!["distributedlocks"],
        ..Setup::default()
    });
    cluster.golden("no-locks-list", "list");
    cluster.golden("no-locks-list-all-namespaces", "list -A");
    cluster.golden("no-locks-list-watch", "list -w");
    cluster.golden("no-locks-why", "why orders");
    cluster.golden("no-locks-version", "version");
    cluster.golden("no-locks-elections", "elections");
}

#[test]
fn missing_definitions_are_named_by_each_command() {
    let cluster = Cluster::with(Setup {
        no_kinds: true,
        ..Setup::default()
    });
    cluster.golden("no-kinds-list", "list");
    for (_, line) in READING {
        let output = cluster.command(&words(line)).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            stderr.contains("does not know the kinds of leasehold.dev"),
            "{line}: {stderr}"
        );
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert_eq!(output.stdout, b"", "{line}");
    }
    let watch = cluster.command(&words("list --watch")).output().unwrap();
    assert_eq!(watch.status.code(), Some(1));
}

#[test]
fn bad_answers_of_the_api_server_are_shown() {
    let answered = |code, text| Setup {
        answers: Answers::Text(code, text),
        ..Setup::default()
    };
    let internal = r#"{"kind":"Status","status":"Failure","message":"etcdserver: request timed out","reason":"InternalError","code":500}"#;
    let unauthorized = r#"{"kind":"Status","status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#;
    for (name, setup) in [
        ("answer-401", answered(401, unauthorized)),
        ("answer-500", answered(500, internal)),
        (
            "answer-502-hostile",
            answered(502, "<html>\u{1b}[2J\r\nBad gateway</html>\n"),
        ),
        ("answer-no-json", answered(200, "<html>Log in</html>")),
        ("answer-empty", answered(200, "{}")),
        (
            "answer-no-date",
            Setup {
                answers: Answers::Undated,
                ..Setup::default()
            },
        ),
    ] {
        Cluster::with(setup).golden(name, "list orders");
    }
}

#[test]
fn request_without_an_answer_ends_at_its_timeout() {
    let cluster = Cluster::with(Setup {
        answers: Answers::Never,
        ..Setup::default()
    });
    cluster.golden("no-answer", "list --request-timeout 300ms");
}

#[test]
fn server_that_does_not_listen_is_named() {
    let cluster = Cluster::sound();
    // The socket keeps its port and does not listen.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = socket.local_addr().unwrap();
    std::fs::write(cluster.kubeconfig(), kubeconfig(&format!("http://{gone}"))).unwrap();
    let mut output = cluster.command(&words("list")).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    output.stderr = stderr
        .replace(&gone.port().to_string(), "PORT")
        .into_bytes();
    cluster.compare("connection-refused", "kubectl leasehold list", &output);
}

#[test]
fn lock_that_vanishes_in_mid_command_is_named() {
    for (name, line) in [
        ("vanished-why", "why orders"),
        ("vanished-describe", "describe orders"),
        ("vanished-release", "release orders --reason test --yes"),
    ] {
        let cluster = Cluster::with(Setup {
            vanishes: Some("orders"),
            ..Setup::default()
        });
        cluster.golden(name, line);
    }
}

#[test]
fn wrong_command_line_is_answered_with_the_right_one() {
    let cluster = Cluster::sound();
    for (name, line) in [
        ("usage-no-command", ""),
        ("usage-no-lock", "why"),
        ("usage-unknown-command", "lst"),
        ("usage-unknown-flag", "list --namespaces x"),
        ("usage-bad-namespace", "list -n Shop"),
        ("usage-bad-timeout", "list --request-timeout soon"),
        ("usage-bad-lock", "why ''"),
        ("usage-hostile-lock", "why a\u{1b}[2J"),
        ("usage-hostile-value", "list -n a\u{1b}[2J"),
        ("usage-as-group", "list --as-group admins"),
        ("usage-sort-by-watch", "list --sort-by .a -w"),
        ("usage-bad-sort-by", "list --sort-by '{.a'"),
        ("usage-unknown-context", "list --context nowhere"),
        ("usage-no-kubeconfig", "list --kubeconfig /nowhere/config"),
    ] {
        cluster.golden(name, line);
    }
}

#[test]
fn closed_output_ends_the_plugin_silently() {
    let cluster = Cluster::sound();
    for line in [
        "list",
        "list -o json",
        "why orders",
        "version --client",
        "list -w",
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let child = cluster
            .command(&words(line))
            .stdout(writer)
            .stderr(Stdio::piped())
            .spawn();
        let output = child.unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{line}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
    }
}

#[test]
fn full_output_is_an_error() {
    let cluster = Cluster::sound();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let child = cluster
        .command(&words("list"))
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn();
    let output = child.unwrap().wait_with_output().unwrap();
    cluster.compare("full-output", "kubectl leasehold list > /dev/full", &output);
}
