//! `leasehold gate` with a scripted sidecar: the answers that open it.

use std::io::Read as _;
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::{head, leasehold, run};

/// A running gate.
struct Gate(Child);

impl Gate {
    fn start(address: SocketAddr) -> Self {
        let url = format!("http://{address}");
        let mut command = leasehold(&["gate", "jobs", "--log-format=json"]);
        let command = command.env("LEASEHOLD_URL", url).stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Returns its exit code and its output.
    async fn ended(mut self) -> (Option<i32>, String) {
        tokio::task::spawn_blocking(move || {
            let mut said = String::new();
            let log = self.0.stderr.as_mut().unwrap();
            log.read_to_string(&mut said).unwrap();
            (self.0.wait().unwrap().code(), said)
        })
        .await
        .unwrap()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ended_before = self.0.kill();
        let _reaped_before = self.0.wait();
    }
}

fn election(leader: bool, valid_for_ms: u64) -> String {
    let pod = if leader { "this" } else { "other" };
    let mut told = json!({"name": "jobs", "leader": leader, "holder": {"pod": pod}});
    if leader {
        told["validForMs"] = valid_for_ms.into();
        told["fencingToken"] = 7.into();
    }
    told.to_string()
}

/// Accepts one request, waits, and answers.
async fn answer(listener: &TcpListener, status: &str, wait: Duration, body: &str) {
    let (mut connection, _) = listener.accept().await.unwrap();
    let asked = head(&mut connection).await;
    assert!(
        asked.starts_with("GET /v1/elections/jobs HTTP/1.1\r\n"),
        "{asked}"
    );
    tokio::time::sleep(wait).await;
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
    connection.write_all(answer.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn gate_opens_only_with_a_valid_leader_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gate = Gate::start(listener.local_addr().unwrap());
    let at_once = Duration::ZERO;
    let resuming = r#"{"code": "resuming", "detail": "soon"}"#;
    answer(&listener, "503 Service Unavailable", at_once, resuming).await;
    answer(&listener, "200 OK", at_once, &election(false, 0)).await;
    // Its sidecar crashes.
    drop(listener.accept().await.unwrap());
    let slow = Duration::from_millis(300);
    answer(&listener, "200 OK", slow, &election(true, 300)).await;
    answer(&listener, "200 OK", at_once, "ok").await;
    answer(&listener, "200 OK", at_once, &election(true, 10_000)).await;
    let (code, said) = gate.ended().await;
    assert_eq!(code, Some(0), "{said}");
    for words in [
        "resuming: soon",
        "pod other leads",
        "after its validForMs",
        "not from a Leasehold sidecar",
        "this pod leads",
    ] {
        assert_eq!(said.matches(words).count(), 1, "{words}: {said}");
    }
}

#[tokio::test]
async fn gate_logs_the_leader_once_and_ends_on_a_signal() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gate = Gate::start(listener.local_addr().unwrap());
    for _time in 0..3 {
        answer(&listener, "200 OK", Duration::ZERO, &election(false, 0)).await;
    }
    super::signal(&gate.0, "TERM");
    let (code, said) = gate.ended().await;
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.matches("pod other leads").count(), 1, "{said}");
    let line = "error: ended by a signal before this pod led jobs";
    assert_eq!(said.lines().last(), Some(line));
}

#[test]
fn invalid_gate_arguments_are_usage_errors() {
    for (args, words) in [
        (&["gate"][..], "NAME"),
        (&["gate", "Jobs"], "lower-case letters"),
        (&["gate", "jobs", "--url=https://localhost"], "unix:///PATH"),
        (&["gate", "jobs", "--url=unix://run/s"], "unix:///PATH"),
        (&["health", "--listen=none"], "--unix-socket"),
        (&["health", "--admin-listen=127.0.0.1:0"], "port 0"),
        (&["health", "--unix-socket"], "--unix-socket"),
    ] {
        let output = run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(words), "{said:?} has no {words:?}");
    }
}
