//! An app that uses a client: the driver of its language as a process, told what to do by lines of
//! JSON (clients/README.md).

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::timeout;

/// A limit that no successful operation reaches.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A client, and how it holds locks.
pub(super) struct Kind<C> {
    /// Returns the driver's command, to which the sidecar's URL is added.
    pub(super) command: C,
    /// The seconds of silence after which a lease ends; `None`: the client holds by a connection.
    pub(super) ttl: Option<u64>,
    pub(super) patience: Duration,
}

impl<C: Fn() -> Command> Kind<C> {
    pub(super) async fn start(&self, url: &str) -> App {
        self.start_with(url, &[]).await
    }

    pub(super) async fn start_with(&self, url: &str, environment: &[(&str, &str)]) -> App {
        let mut command = (self.command)();
        command.arg(url).envs(environment.iter().copied());
        App::start(command, self.ttl, self.patience).await
    }
}

/// A running driver. Dropping it kills it.
pub(super) struct App {
    process: Child,
    calls: ChildStdin,
    lines: UnboundedReceiver<Value>,
    /// Read before they were waited for.
    early: Vec<Value>,
    last: u64,
    ttl: Option<u64>,
    patience: Duration,
}

impl App {
    async fn start(mut command: Command, ttl: Option<u64>, patience: Duration) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a driver that starts");
        let (sender, lines) = mpsc::unbounded_channel();
        let output = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let line = serde_json::from_str(&line).expect("a line of JSON");
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut app = Self {
            calls: process.stdin.take().unwrap(),
            process,
            lines,
            early: Vec::new(),
            last: 0,
            ttl,
            patience,
        };
        app.line("a version", |line| line["version"].is_string())
            .await;
        app
    }

    /// Returns the first line that fits.
    async fn line(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        if let Some(place) = self.early.iter().position(&fits) {
            return self.early.remove(place);
        }
        let wait = async {
            loop {
                let line = self.lines.recv().await.expect("a driver that runs");
                if fits(&line) {
                    return line;
                }
                self.early.push(line);
            }
        };
        let found = timeout(self.patience, wait).await;
        found.unwrap_or_else(|_| panic!("no {what}"))
    }

    /// Sends a call, and returns its number.
    pub(super) fn send(&mut self, mut call: Value) -> u64 {
        self.last += 1;
        call["id"] = json!(self.last);
        writeln!(self.calls, "{call}").unwrap();
        self.last
    }

    pub(super) async fn answer(&mut self, id: u64) -> Value {
        self.line("answer", |line| line["id"] == id).await
    }

    /// Sends a call that takes minutes on a busy machine.
    pub(super) async fn long_call(&mut self, call: Value) -> Value {
        let patience = self.patience;
        self.patience = patience * 10;
        let answer = self.call(call).await;
        self.patience = patience;
        answer
    }

    pub(super) async fn call(&mut self, call: Value) -> Value {
        let id = self.send(call);
        self.answer(id).await
    }

    /// Sends a call about a lease.
    pub(super) async fn ask(&mut self, lease: &str, call: &str) -> Value {
        self.call(json!({"call": call, "lease": lease})).await
    }

    pub(super) fn send_lock(&mut self, resource: &str, wait: Option<u64>) -> u64 {
        let ttl = self.ttl;
        let lock = json!({"call": "lock", "lease": resource, "resource": resource, "wait": wait, "ttl": ttl});
        self.send(lock)
    }

    /// Acquires a lock; its lease has the name of the resource.
    pub(super) async fn lock(&mut self, resource: &str) -> Value {
        let id = self.send_lock(resource, None);
        let lease = self.answer(id).await;
        assert!(lease["token"].is_u64(), "{lease}");
        lease
    }

    pub(super) async fn refused_lock(&mut self, resource: &str, wait: u64) -> Value {
        let id = self.send_lock(resource, Some(wait));
        let refused = self.answer(id).await;
        assert!(refused["error"].is_string(), "{refused}");
        refused
    }

    /// Waits until the app learns that it lost a lease, without a call about it; returns the reason.
    pub(super) async fn loss(&mut self, lease: &str) -> Value {
        let mut line = self.line("loss", |line| line["lost"] == lease).await;
        line["reason"].take()
    }

    pub(super) async fn holds(&mut self, lease: &str) -> Duration {
        let found = self.ask(lease, "check").await;
        let remaining = found["remaining"].as_f64();
        Duration::from_secs_f64(remaining.unwrap_or_else(|| panic!("lost: {found}")))
    }

    pub(super) async fn has_lost(&mut self, lease: &str) {
        for call in ["check", "headers"] {
            let found = self.ask(lease, call).await;
            assert_eq!(found["error"], "lost", "{call}: {found}");
        }
    }

    pub(super) fn signal(&self, signal: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
    }

    /// Returns how many threads it has.
    pub(super) fn threads(&self) -> usize {
        let directory = format!("/proc/{}/task", self.process.id());
        std::fs::read_dir(directory).unwrap().count()
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ended_before = self.process.kill();
        let _reaped_before = self.process.wait();
    }
}
