//! Does what the conformance suite says (clients/README.md): calls are lines of JSON on the standard
//! input, answers are lines on the standard output.
//!
//! `conformance blocks|leases URL`

use std::collections::HashMap;
use std::error::Error as _;
use std::io::{BufRead as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use leasehold_client::{Client, Election, Error, Lease, Lock};
use serde_json::{Value, json};
use tokio::sync::mpsc;

fn say(line: &Value) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}").expect("the suite must read the answers");
}

fn answer(call: &Value, mut values: Value) {
    values["id"] = call["id"].clone();
    say(&values);
}

fn refuse(call: &Value, error: &Error) {
    let kind = match error {
        Error::Held { .. } => "held",
        Error::Lost { .. } => "lost",
        Error::Unavailable { .. } => "unavailable",
        Error::Refused { .. } => "refused",
        _ => "other",
    };
    let detail = error.to_string();
    assert!(error.source().is_none(), "the message has everything");
    answer(
        call,
        json!({"error": kind, "code": error.code(), "detail": detail}),
    );
}

fn text<'a>(call: &'a Value, name: &str) -> &'a str {
    call[name].as_str().unwrap_or_default()
}

fn lock(client: &Client, call: &Value, resource: &str) -> Lock {
    let mut lock = client.lock(resource);
    if let Some(seconds) = call["wait"].as_f64() {
        lock = lock.wait(Duration::from_secs_f64(seconds));
    }
    if let Some(seconds) = call["ttl"].as_f64() {
        lock = lock.ttl(Duration::from_secs_f64(seconds));
    }
    lock
}

/// What the driver holds.
struct App {
    client: Client,
    /// Holds locks by `run`, and not by a lease.
    has_blocks: bool,
    blocks: HashMap<String, mpsc::UnboundedSender<Value>>,
    elections: HashMap<String, Election>,
    many: Vec<Lease>,
}

impl App {
    #[expect(clippy::zombie_processes, reason = "the program outlives the driver")]
    async fn take(&mut self, call: Value) {
        match text(&call, "call") {
            "lock" => {
                let (sender, calls) = mpsc::unbounded_channel();
                self.blocks.insert(text(&call, "lease").into(), sender);
                let client = self.client.clone();
                if self.has_blocks {
                    tokio::spawn(block(client, call, calls));
                } else {
                    tokio::spawn(hold(client, call, calls));
                }
            }
            "many" => self.acquire_many(&call).await,
            "check-many" => {
                let held = self
                    .many
                    .iter()
                    .filter(|lease| lease.check().is_ok())
                    .count();
                answer(&call, json!({"held": held}));
            }
            "busy" => {
                busy(call["seconds"].as_f64().unwrap_or_default());
                answer(&call, json!({}));
            }
            "round" => self.round(&call).await,
            "start" => {
                let program = Command::new("sleep")
                    .arg("120")
                    .stdout(Stdio::null())
                    .spawn();
                let program = program.expect("a program that starts");
                answer(&call, json!({"pid": program.id()}));
            }
            "elect" | "leads" | "step-down" => self.elect(&call),
            _ => {
                let block = &self.blocks[text(&call, "lease")];
                let _ended = block.send(call);
            }
        }
    }

    async fn acquire_many(&mut self, call: &Value) {
        for number in 0..call["count"].as_u64().unwrap_or_default() {
            let name = format!("{}-{number}", text(call, "resource"));
            match lock(&self.client, call, &name).await {
                Ok(lease) => self.many.push(lease),
                Err(error) => return refuse(call, &error),
            }
        }
        answer(call, json!({"held": self.many.len()}));
    }

    /// Measures one lock and unlock.
    #[expect(clippy::disallowed_methods, reason = "nothing is decided by it")]
    async fn round(&self, call: &Value) {
        let start = Instant::now();
        let round = async {
            let lease = lock(&self.client, call, text(call, "resource")).await?;
            lease.release().await
        };
        match round.await {
            Ok(()) => answer(call, json!({"ms": start.elapsed().as_secs_f64() * 1000.0})),
            Err(error) => refuse(call, &error),
        }
    }

    fn elect(&mut self, call: &Value) {
        let name = text(call, "election");
        match text(call, "call") {
            "elect" => {
                let election = self
                    .client
                    .elect(name, |lease, election| election.wait(lease));
                self.elections.insert(name.into(), election);
                answer(call, json!({}));
            }
            "leads" => {
                let token = self.elections[name].token();
                answer(call, json!({"leads": token.is_some(), "token": token}));
            }
            _ => {
                if let Some(election) = self.elections.remove(name) {
                    election.stop();
                }
                answer(call, json!({}));
            }
        }
    }
}

/// A guarded block by `run`, which ends with the call `release`, or when its future is dropped.
async fn block(client: Client, begin: Value, mut calls: mpsc::UnboundedReceiver<Value>) {
    let mut last = begin.clone();
    let held = lock(&client, &begin, text(&begin, "resource"));
    let result: Result<(), Error> = held
        .run(async |lease| {
            granted(&begin, lease);
            while let Some(call) = calls.recv().await {
                last = call;
                if text(&last, "call") == "release" {
                    break;
                }
                ask(lease, &last);
            }
            Ok(())
        })
        .await;
    match result {
        Err(error @ Error::Lost { .. }) if text(&last, "call") != "release" => {
            while let Some(call) = calls.recv().await {
                refuse(&call, &error);
            }
        }
        Err(error) => refuse(&last, &error),
        Ok(()) => answer(&last, json!({})),
    }
}

/// The same with a lease in hand, which continues after a loss.
async fn hold(client: Client, begin: Value, mut calls: mpsc::UnboundedReceiver<Value>) {
    let lease = match lock(&client, &begin, text(&begin, "resource")).await {
        Ok(lease) => lease,
        Err(error) => return refuse(&begin, &error),
    };
    granted(&begin, &lease);
    while let Some(call) = calls.recv().await {
        if text(&call, "call") != "release" {
            ask(&lease, &call);
            continue;
        }
        return match lease.release().await {
            Ok(()) => answer(&call, json!({})),
            Err(error) => refuse(&call, &error),
        };
    }
}

fn granted(begin: &Value, lease: &Lease) {
    answer(
        begin,
        json!({"token": lease.token(), "leaseId": lease.id()}),
    );
    let name = begin["lease"].clone();
    lease.on_lost(move |error| say(&json!({"lost": name, "reason": error.code()})));
}

fn ask(lease: &Lease, call: &Value) {
    let result = match text(call, "call") {
        "headers" => lease
            .header()
            .map(|(name, token)| json!({"headers": {name: token}})),
        _ => lease
            .check()
            .map(|()| json!({"remaining": lease.remaining().as_secs_f64()})),
    };
    match result {
        Ok(values) => answer(call, values),
        Err(error) => refuse(call, &error),
    }
}

/// Computes on the thread of the runtime.
#[expect(clippy::disallowed_methods, reason = "nothing is decided by it")]
fn busy(seconds: f64) {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {}
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let has_blocks = arguments.next().expect("a style") == "blocks";
    let address = arguments.next().expect("the sidecar's address");
    let client = Client::new(&address).expect("a valid address");
    say(&json!({"version": env!("CARGO_PKG_VERSION")}));
    let (sender, mut calls) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ended = sender.send(line);
        }
    });
    let mut app = App {
        client,
        has_blocks,
        blocks: HashMap::new(),
        elections: HashMap::new(),
        many: Vec::new(),
    };
    while let Some(line) = calls.recv().await {
        app.take(serde_json::from_str(&line).expect("a line of JSON"))
            .await;
    }
}
