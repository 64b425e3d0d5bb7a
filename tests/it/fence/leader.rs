//! `--leader`: one of several fences, which forwards while the lease of `leasehold exec` is valid. The agent is a stub.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::outcomes::{newer_passes, unread};
use super::raw::Service;
use super::{Fence, post as write};
use crate::dev::eventually;

const AUTHORIZE: &str = "--authorize";

/// What the agent answers about the lease.
#[derive(Clone, Copy)]
enum Lease {
    ValidForMs(u64),
    Lost,
    NoAnswer,
}

/// An agent that has the lease `one`, and that finds each token current.
struct Agent {
    url: String,
    lease: Arc<Mutex<Lease>>,
    _server: AbortOnDropHandle<()>,
}

impl Agent {
    async fn start(lease: Lease) -> Self {
        let lease = Arc::new(Mutex::new(lease));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new()
            .route("/v1/locks/one", get(answer))
            .route(
                "/v1/fencing/verify",
                post(async || Json(json!({"current": true}))),
            )
            .with_state(lease.clone());
        let server = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let server = AbortOnDropHandle::new(server);
        Self {
            url,
            lease,
            _server: server,
        }
    }

    fn answers(&self, lease: Lease) {
        *self.lease.lock().unwrap() = lease;
    }
}

async fn answer(State(lease): State<Arc<Mutex<Lease>>>) -> (StatusCode, Json<Value>) {
    let (status, body) = match *lease.lock().unwrap() {
        Lease::ValidForMs(ms) => (StatusCode::OK, json!({"validForMs": ms})),
        Lease::Lost => (StatusCode::GONE, json!({"code": "lease_lost"})),
        Lease::NoAnswer => (StatusCode::BAD_GATEWAY, json!({})),
    };
    (status, Json(body))
}

fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command
        .args(["fence", "--leader", "--log-format=json"])
        .args(["--settle=1", "--listen=127.0.0.1:0", "--admin-listen=none"])
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

async fn leader(agent: &Agent, flags: &[&str]) -> Fence {
    let mut command = command(flags);
    command
        .env("LEASEHOLD_URL", &agent.url)
        .env("LEASEHOLD_LEASE_ID", "one");
    Fence::spawn(command, tempfile::tempdir().unwrap()).await
}

/// Returns the status of a write, and its body.
async fn asked(fence: &Fence) -> (u16, String) {
    let mut client = fence.connect().await;
    client.send(write(7, "")).await;
    let answer = client.answer().await;
    (answer.status, answer.body)
}

#[tokio::test]
async fn leader_ends_when_its_lease_is_over() {
    let agent = Agent::start(Lease::ValidForMs(4_000)).await;
    let mut fence = leader(&agent, &[AUTHORIZE]).await;
    eventually(async || (asked(&fence).await.0 == 200).then_some(())).await;
    // Another lead may have had the newest token, so this one begins without any.
    let starting = fence.event("fence starting").await;
    assert_eq!(
        (&starting["resources"], &starting["settleSeconds"]),
        (&json!(0), &json!(1))
    );
    // Also a request that is running ends then: the next leader waits only for `--settle`.
    agent.answers(Lease::Lost);
    assert_eq!(fence.exit_code().await, Some(1));
    let printed = std::fs::read_to_string(fence.log.path().join("stderr")).unwrap();
    assert!(
        printed.contains("the lease of `leasehold exec` is over"),
        "{printed}"
    );
}

#[tokio::test]
async fn lease_that_cannot_be_read_ends_at_its_deadline() {
    let agent = Agent::start(Lease::ValidForMs(4_000)).await;
    let fence = leader(&agent, &[AUTHORIZE]).await;
    agent.answers(Lease::NoAnswer);
    fence.event("reading the lease failed").await;
    let refused =
        eventually(async || Some(asked(&fence).await).filter(|(status, _)| *status != 200));
    let (status, body) = refused.await;
    assert!(
        status == 503 && body.contains("\"not_leading\""),
        "{status} {body}"
    );
    // What needs no token needs no lead.
    let mut client = fence.connect().await;
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 200);
    agent.answers(Lease::ValidForMs(60_000));
    eventually(async || (asked(&fence).await.0 == 200).then_some(())).await;
}

/// The next leader waits only for `--settle`.
#[tokio::test]
async fn leader_stops_sending_to_a_service_that_does_not_read() {
    let agent = Agent::start(Lease::ValidForMs(86_400_000)).await;
    let service = Service::listen().await;
    let upstream = format!("--upstream=http://{}", service.address());
    let flags = ["--older-requests=0", "--upstream-timeout=86400", &upstream];
    let fence = leader(&agent, &flags).await;
    let (_client, _upstream) = unread(&fence, &service).await;
    newer_passes(&fence, &service).await;
}

#[tokio::test]
async fn fence_without_the_lease_of_exec_does_not_start() {
    let agent = Agent::start(Lease::Lost).await;
    let variables: [(&[(&str, &str)], &str); 3] = [
        (
            &[],
            "LEASEHOLD_URL is missing; start the fence by `leasehold exec",
        ),
        (
            &[("LEASEHOLD_URL", &agent.url)],
            "LEASEHOLD_LEASE_ID is missing",
        ),
        (
            &[("LEASEHOLD_URL", &agent.url), ("LEASEHOLD_LEASE_ID", "one")],
            "is over",
        ),
    ];
    for (variables, expected) in variables {
        let mut command = command(&[AUTHORIZE]);
        command
            .env_remove("LEASEHOLD_URL")
            .envs(variables.iter().copied());
        let output = tokio::process::Command::from(command)
            .output()
            .await
            .unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains(expected), "{printed}");
    }
}
