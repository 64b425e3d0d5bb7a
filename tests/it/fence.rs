//! `leasehold fence` as a process, between clients and services that these tests play byte by byte: what it
//! forwards and refuses, its limits, its stops, its log and admin port, and a corpus of request smuggling.

mod access_log;
mod admin;
mod authorize;
mod flags;
mod frames;
mod http2;
mod leader;
mod limits;
mod outcomes;
mod raw;
mod reports;
mod semantics;
mod smuggling;
mod stop;
mod streaming;
mod tunnels;

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::dev::eventually;
use raw::{Raw, Service};

/// The headers of a request with token 7 for the resource `r`.
const FENCED: &str = "Host: example.test\r\nX-Fencing-Token: 7\r\nX-Fencing-Resource: r\r\n";

/// A running `leasehold fence`. Dropping it kills it.
struct Fence {
    process: Child,
    address: SocketAddr,
    log: TempDir,
}

/// Returns the command of a fence in front of a service, which trusts tokens.
fn command(state: &Path, upstream: SocketAddr, flags: &[&str]) -> Command {
    let mut command = any_command(state, flags);
    command.args(["--upstream", &format!("http://{upstream}")]);
    command
}

/// The same without a service.
fn any_command(state: &Path, flags: &[&str]) -> Command {
    let mut command = verifying_command(state, flags);
    command.arg("--trust-tokens");
    command
}

/// The same, which verifies tokens.
fn verifying_command(state: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command
        .args(["fence", "--log-format=json"])
        .arg("--listen=127.0.0.1:0")
        // Flags override them.
        .env("LEASEHOLD_FENCE_ADMIN_LISTEN", "none")
        .env("LEASEHOLD_FENCE_SETTLE", "0")
        .arg("--state-dir")
        .arg(state)
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

impl Fence {
    /// Starts one in front of a new service, with a state directory of its own.
    async fn before_service(flags: &[&str]) -> (Self, Service) {
        let service = Service::listen().await;
        (Self::start(service.address(), flags).await, service)
    }

    /// The same after an orderly stop. With a new directory or after a crash, each token waits for `--settle` first.
    async fn settled(flags: &[&str]) -> (Self, Service) {
        let service = Service::listen().await;
        let log = tempfile::tempdir().unwrap();
        let state = log.path().join("state");
        let mut before = Self::start_on(&state, service.address(), &[]).await;
        before.signal("TERM");
        assert_eq!(before.exit_code().await, Some(0));
        let command = command(&state, service.address(), flags);
        (Self::spawn(command, log).await, service)
    }

    async fn start(upstream: SocketAddr, flags: &[&str]) -> Self {
        let log = tempfile::tempdir().unwrap();
        let state = log.path().join("state");
        Self::spawn(command(&state, upstream, flags), log).await
    }

    /// Starts one on a state directory that outlives it.
    async fn start_on(state: &Path, upstream: SocketAddr, flags: &[&str]) -> Self {
        let log = tempfile::tempdir().unwrap();
        Self::spawn(command(state, upstream, flags), log).await
    }

    async fn spawn(mut command: Command, log: TempDir) -> Self {
        let stderr = File::create(log.path().join("stderr")).unwrap();
        let mut process = command.stderr(stderr).spawn().unwrap();
        let address = eventually(async || {
            let ended = process.try_wait().unwrap();
            let events = events(log.path());
            assert!(ended.is_none(), "it does not start: {events:?}");
            let event = events.into_iter().find(|event| event["api"] == "fence")?;
            event["address"].as_str()?.parse().ok()
        });
        Self {
            address: address.await,
            process,
            log,
        }
    }

    /// Returns a new connection.
    async fn connect(&self) -> Raw {
        Raw::connect(self.address).await
    }

    /// Returns what it logged.
    fn events(&self) -> Vec<Value> {
        events(self.log.path())
    }

    /// Waits for an event with this message.
    async fn event(&self, message: &str) -> Value {
        eventually(async || {
            let mut events = self.events().into_iter();
            events.find(|event| event["message"] == message)
        })
        .await
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its exit, and returns the code.
    async fn exit_code(&mut self) -> Option<i32> {
        let exited = eventually(async || self.process.try_wait().unwrap()).await;
        exited.code()
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        let _ended_before = self.process.kill();
        let _reaped_before = self.process.wait();
    }
}

fn events(directory: &Path) -> Vec<Value> {
    let log = fs::read_to_string(directory.join("stderr")).unwrap();
    let lines = log.lines();
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Returns a POST with a token and a body of a known length.
fn post(token: u64, body: &str) -> String {
    format!(
        "POST /w HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: {token}\r\nX-Fencing-Resource: r\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}
