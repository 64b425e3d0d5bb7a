//! What a client library adds to HTTP: locking and unlocking a free lock of `leasehold dev`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::Client as Http;
use serde_json::{Value, json};

use crate::harness::{PATIENCE, directory, eventually};
use crate::rows::Rows;

const ROUNDS: usize = 300;
const WARM_UP: usize = 30;
const TTL_SECONDS: u64 = 60;

const HTTP: &str = "HTTP: acquire, DELETE";
const PYTHON: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/clients/python/conformance/driver.py"
);
/// Each language's driver, with a connection and with renewals. Paths are below what `make bench` has built.
const DRIVERS: [(&str, &str, &[&str]); 5] = [
    ("Go, by connection", "Go, by renewal", &["go/plain"]),
    (
        "Java, by connection",
        "Java, by renewal",
        &[
            "java",
            "-cp",
            "java/programs:java/lib/*",
            "Driver",
            "blocks",
        ],
    ),
    (
        "Python, by connection",
        "Python, by renewal",
        &["python/venv/bin/python", PYTHON, "threads"],
    ),
    (
        "Rust, by connection",
        "Rust, by renewal",
        &["rust/optimized", "leases"],
    ),
    (
        "TypeScript, by connection",
        "TypeScript, by renewal",
        &["node", "typescript/app/driver.mjs", "import"],
    ),
];

/// Measures all in turns. `drivers` is the directory that the paths are relative to.
pub(crate) async fn measure(binary: &str, drivers: &Path) -> Result<()> {
    let drivers = &std::fs::canonicalize(drivers).context("`make bench` builds the drivers")?;
    let folder = directory()?.join("clients");
    std::fs::create_dir(&folder)?;
    let dev = Dev::start(binary, &folder).await?;
    let http = Http::builder().no_proxy().build()?;
    let mut turns = vec![Turn::Http];
    for (by_connection, by_renewal, command) in DRIVERS {
        let start = || Driver::start(command, drivers, &dev.url);
        turns.push(Turn::Client(by_connection, None, start()?));
        turns.push(Turn::Client(by_renewal, Some(TTL_SECONDS), start()?));
    }
    let mut rows = Rows::default();
    for round in 0..WARM_UP + ROUNDS {
        if round == WARM_UP {
            rows = Rows::default();
        }
        fastrand::shuffle(&mut turns);
        for turn in &mut turns {
            match turn {
                Turn::Http => rows.time(HTTP, bare(&http, &dev.url)).await?,
                Turn::Client(name, ttl, driver) => rows.add(name, driver.round(*ttl)?),
            }
        }
    }
    let names = DRIVERS.iter().flat_map(|(one, other, _)| [*one, *other]);
    rows.print(&[HTTP].into_iter().chain(names).collect::<Vec<_>>(), HTTP);
    Ok(())
}

enum Turn {
    Http,
    Client(&'static str, Option<u64>, Driver),
}

async fn bare(http: &Http, url: &str) -> Result<()> {
    let body = json!({"resource": "bench", "ttlSeconds": TTL_SECONDS});
    let request = http.post(format!("{url}/v1/locks/acquire"));
    let text = request
        .header("Content-Type", "application/json")
        .body(body.to_string());
    let lease = text.send().await?.error_for_status()?.bytes().await?;
    let lease: Value = serde_json::from_slice(&lease)?;
    let id = lease["leaseId"].as_str().context("a lease")?;
    let released = http.delete(format!("{url}/v1/locks/{id}")).send().await?;
    released.error_for_status()?;
    Ok(())
}

/// A running `leasehold dev`. Dropping it kills it.
struct Dev {
    process: Child,
    url: String,
}

impl Dev {
    async fn start(binary: &str, folder: &Path) -> Result<Self> {
        let mut command = Command::new(binary);
        command
            .args([
                "dev",
                "--listen=127.0.0.1:0",
                "--admin-listen=none",
                "--log-format=json",
            ])
            .arg("--data-dir")
            .arg(folder)
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.join("log"))?);
        let process = command.spawn().context("cannot start leasehold dev")?;
        let url = eventually("leasehold dev to listen", PATIENCE, async || {
            let log = std::fs::read_to_string(folder.join("log")).ok()?;
            let mut events = log
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let event =
                events.find(|event| event["message"] == "listening" && event["api"] == "locks")?;
            Some(format!("http://{}", event["address"].as_str()?))
        });
        Ok(Self {
            process,
            url: url.await?,
        })
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ended_before = self.process.kill();
        let _reaped_before = self.process.wait();
    }
}

/// A client's driver (clients/README.md). Dropping it ends it.
struct Driver {
    process: Child,
    calls: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Driver {
    fn start(command: &[&str], drivers: &Path, url: &str) -> Result<Self> {
        let [program, args @ ..] = command else {
            anyhow::bail!("no command");
        };
        let own = drivers.join(program);
        let program = if own.is_file() {
            own.as_path()
        } else {
            Path::new(program)
        };
        let mut process = Command::new(program)
            .args(args)
            .arg(url)
            .current_dir(drivers)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let calls = process.stdin.take().context("its input")?;
        let answers = BufReader::new(process.stdout.take().context("its output")?);
        let mut driver = Self {
            process,
            calls,
            answers,
        };
        driver.line().with_context(|| command.join(" "))?;
        Ok(driver)
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn round(&mut self, ttl: Option<u64>) -> Result<Duration> {
        let call = json!({"id": 1, "call": "round", "resource": "bench", "ttl": ttl});
        writeln!(self.calls, "{call}")?;
        let answer = self.line()?;
        let ms = answer["ms"].as_f64().with_context(|| answer.to_string())?;
        Ok(Duration::from_secs_f64(ms / 1000.0))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ended_before = self.process.kill();
        let _reaped_before = self.process.wait();
    }
}
