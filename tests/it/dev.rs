//! `leasehold dev` as a separate process: its output, its errors, the state after a kill -9, its
//! data directory, and the faults that tests may request.

mod connections;
mod crashes;
mod directory;
mod elections;
mod exec;
mod faults;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::seed::seed;

/// A limit that no successful operation reaches.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `leasehold dev`. Dropping it kills it.
pub(crate) struct Dev {
    process: Child,
    url: String,
    http: Client,
    said: TempDir,
}

/// An answer's status and body.
pub(crate) type Answer = (StatusCode, Value);

fn command(data_dir: &Path, flags: &[&str]) -> Command {
    let mut command = without_a_directory();
    command.arg("--data-dir").arg(data_dir).args(flags);
    command
}

fn without_a_directory() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command
        .args(["dev", "--log-format=json"])
        .args(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
        // A flag overrides it.
        .env("LEASEHOLD_SESSION_TTL", "3");
    command
}

/// Runs a command that must fail to start: its exit code is 1, and one line has the reason.
fn refused(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("error: ") && said.lines().count() == 1,
        "{said}"
    );
    said
}

impl Dev {
    pub(crate) async fn start(data_dir: &Path, flags: &[&str]) -> Self {
        Self::spawn(command(data_dir, flags)).await
    }

    async fn spawn(mut command: Command) -> Self {
        let said = tempfile::tempdir().unwrap();
        let file = |name: &str| File::create(said.path().join(name)).unwrap();
        let mut process = command
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .unwrap();
        let log = said.path().join("stderr");
        let url = eventually(async || {
            let log = fs::read_to_string(&log).unwrap();
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "it does not start: {log}");
            let events = log
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok());
            let listening = events.filter(|event: &Value| event["message"] == "listening");
            let mut addresses = listening.filter(|event| event["api"] == "locks");
            let address = addresses.next()?["address"].as_str()?.to_owned();
            Some(format!("http://{address}"))
        });
        Self {
            url: url.await,
            process,
            http: Client::new(),
            said,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Releases a lease.
    pub(crate) async fn release(&self, lease: &Value) {
        let (status, said) = self.call(Method::DELETE, &path_of(lease), None).await;
        assert_eq!(status, 204, "{said}");
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        self.try_call(method, path, body).await.unwrap()
    }

    async fn try_call(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> reqwest::Result<Answer> {
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        Ok((status, serde_json::from_str(&text).unwrap_or_default()))
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, Some(body)).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, None).await
    }

    pub(crate) async fn try_acquire(&self, resource: &str) -> Answer {
        let body = json!({"resource": resource, "ownerId": "app", "ttlSeconds": 300});
        self.post("/v1/locks/acquire", body).await
    }

    /// Acquires a free lock.
    pub(crate) async fn acquire(&self, resource: &str) -> Value {
        let (status, lease) = self.try_acquire(resource).await;
        assert_eq!(status, 200, "{lease}");
        lease
    }

    /// Acquires a lock as soon as it is free.
    pub(crate) async fn acquire_in_time(&self, resource: &str) -> Value {
        eventually(async || {
            let (status, lease) = self.try_acquire(resource).await;
            assert!(status == 200 || lease["code"] == "lock_held", "{lease}");
            (status == 200).then_some(lease)
        })
        .await
    }

    fn said(&self, name: &str) -> String {
        fs::read_to_string(self.said.path().join(name)).unwrap()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Sends a signal, and waits for its exit.
    pub(crate) fn end_by(mut self, signal: &str) -> ExitStatus {
        self.signal(signal);
        self.process.wait().unwrap()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ended_before = self.process.kill();
        let _reaped_before = self.process.wait();
    }
}

/// Polls until there is a value.
pub(crate) async fn eventually<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let start = SystemClock.now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(SystemClock.now().since(start) < PATIENCE, "timed out");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn token(lease: &Value) -> u64 {
    lease["fencingToken"].as_u64().expect("a token")
}

fn path_of(lease: &Value) -> String {
    format!("/v1/locks/{}", lease["leaseId"].as_str().expect("an id"))
}

#[tokio::test]
async fn dev_prints_its_address_and_a_command_to_try() {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &[]).await;
    let said = dev.said("stdout");
    let line = format!("curl -s {}/v1/locks/acquire", dev.url);
    assert!(said.contains(&line), "{said}");
    assert!(said.contains(&data.path().display().to_string()), "{said}");
    assert!(!said.contains("/dev/faults"), "{said}");
    let lease = dev.acquire("demo").await;
    assert!(token(&lease) > 1_700_000_000_000_000);
    let (status, openapi) = dev.get("/openapi.json").await;
    assert!(status == 200 && openapi["openapi"] == "3.1.0");
}

#[tokio::test]
async fn data_directory_defaults_to_the_state_directory() {
    let home = tempfile::tempdir().unwrap();
    for (name, below) in [
        ("HOME", ".local/state/leasehold"),
        ("XDG_STATE_HOME", "leasehold"),
    ] {
        let mut command = without_a_directory();
        command.env_remove("XDG_STATE_HOME").env(name, home.path());
        let dev = Dev::spawn(command).await;
        let directory = home.path().join(below);
        assert!(directory.join("leasehold.redb").is_file());
        let said = dev.said("stdout");
        assert!(said.contains(&directory.display().to_string()), "{said}");
    }
    let mut nowhere = without_a_directory();
    nowhere.env_remove("XDG_STATE_HOME").env_remove("HOME");
    assert!(refused(nowhere).contains("give --data-dir"));
}

#[tokio::test]
async fn a_second_process_on_one_directory_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &[]).await;
    let lease = dev.acquire("demo").await;
    let said = refused(command(data.path(), &[]));
    let words = format!("in use by another process ({})", dev.process.id());
    assert!(said.contains(&words), "{said}");
    assert_eq!(dev.get(&path_of(&lease)).await.0, 200);
}

#[tokio::test]
async fn damaged_file_is_refused_and_left_unchanged() {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &[]).await;
    let lease = dev.acquire("demo").await;
    dev.end_by("KILL");
    let file = data.path().join("leasehold.redb");
    let good = fs::read(&file).unwrap();
    let place = good.windows(6).position(|window| window == b"\"demo\"");
    let mut changed = good.clone();
    changed[place.unwrap() + 1] ^= 1;
    let mut chance = fastrand::Rng::with_seed(seed());
    let random = (0..50_000).map(|_| chance.u8(..)).collect();
    for bad in [changed, good[..good.len() / 3].to_vec(), random, Vec::new()] {
        fs::write(&file, &bad).unwrap();
        let said = refused(command(data.path(), &[]));
        assert!(
            said.contains("is damaged") && said.contains("move it away"),
            "{said}"
        );
        assert!(fs::read(&file).unwrap() == bad);
    }
    fs::write(&file, &good).unwrap();
    let dev = Dev::start(data.path(), &[]).await;
    let (_, found) = dev.get("/v1/locks").await;
    assert_eq!(found["locks"][0]["fencingToken"], lease["fencingToken"]);
}

#[tokio::test]
async fn a_store_that_was_thrown_away_repeats_no_token() {
    let data = tempfile::tempdir().unwrap();
    let mut last = 0;
    for life in 0..3 {
        let directory = data.path().join(life.to_string());
        let dev = Dev::start(&directory, &[]).await;
        let lease = dev.acquire("demo").await;
        assert!(token(&lease) > last);
        last = token(&lease);
    }
}
