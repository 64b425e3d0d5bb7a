//! Our binary as a separate process, in the place of a pod's sidecar, and its HTTP API.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::pod::Pod;
use super::process::{Process, directory};
use super::wait::{eventually, now};

/// How long a start or an orderly end may take.
const LIMIT: Duration = Duration::from_secs(20);

/// How to start a sidecar.
pub(crate) struct Launch {
    binary: PathBuf,
    pod: Pod,
    listen: String,
    admin_listen: String,
    log_level: &'static str,
    args: Vec<String>,
}

/// A running sidecar. Dropping it kills it.
pub(crate) struct Sidecar {
    /// The pod that it speaks for.
    pub(crate) pod: Pod,
    /// Where it listens: `http://127.0.0.1:PORT`.
    pub(crate) url: String,
    /// Where its health and metrics are.
    pub(crate) admin_url: String,
    process: Process,
    http: reqwest::Client,
}

impl Launch {
    /// The TTL of its sessions; 15 s unless it is set.
    pub(crate) fn session_ttl(self, seconds: u64) -> Self {
        self.arg("--session-ttl").arg(&seconds.to_string())
    }

    /// Where it listens; on free ports unless it is set.
    pub(crate) fn listen(self, api: &str, admin: &str) -> Self {
        Self {
            listen: api.to_owned(),
            admin_listen: admin.to_owned(),
            ..self
        }
    }

    /// With the log that a user gets by default, and not all there is.
    pub(crate) fn default_log(self) -> Self {
        Self {
            log_level: "info",
            ..self
        }
    }

    /// Any further argument.
    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Starts it and waits until it listens.
    pub(crate) async fn start(self) -> Result<Sidecar> {
        static STARTED: AtomicU32 = AtomicU32::new(0);

        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = directory()?.join(format!("sidecar-{}-{number}.log", self.pod.name));
        let mut command = Command::new(&self.binary);
        command
            .arg("sidecar")
            .args(["--listen", &self.listen])
            .args(["--admin-listen", &self.admin_listen])
            .arg("--kubeconfig")
            .arg(&self.pod.kubeconfig.path)
            .args(["--namespace", &self.pod.namespace])
            .args(["--pod-name", &self.pod.name, "--pod-uid", &self.pod.uid])
            .args(["--node-name", "node-1"])
            .args(["--log-format", "json", "--log-level", self.log_level])
            .args(&self.args);
        let process = Process::spawn("leasehold sidecar", &mut command, &log)?;
        let listening = eventually("the sidecar to listen", LIMIT, async || {
            let addresses = addresses(&process.log());
            let ended = process.exited().ok().flatten().is_some();
            (addresses.len() >= 2 || ended).then_some(addresses)
        });
        let listening = listening.await.unwrap_or_default();
        let at = |role: &str| {
            let found = listening.iter().find(|(said, _)| said == role);
            let address = found.map(|(_, address)| format!("http://{address}"));
            address
                .with_context(|| format!("the sidecar does not listen:\n{}", process.last_words()))
        };
        Ok(Sidecar {
            url: at("locks")?,
            admin_url: at("admin")?,
            pod: self.pod,
            process,
            http: reqwest::Client::new(),
        })
    }
}

impl Sidecar {
    /// How to start one for a pod. `binary` is ours; who includes this knows its path.
    pub(crate) fn launch(binary: &str, pod: &Pod) -> Launch {
        Launch {
            binary: binary.into(),
            pod: pod.clone(),
            listen: "127.0.0.1:0".to_owned(),
            admin_listen: "127.0.0.1:0".to_owned(),
            log_level: "debug",
            args: vec![],
        }
    }

    /// Starts one for a pod, with defaults.
    pub(crate) async fn start(binary: &str, pod: &Pod) -> Result<Self> {
        Self::launch(binary, pod).start().await
    }

    /// Tries to take a lock, for an app whose name is the pod's and that is silent for 60 s at
    /// most.
    pub(crate) async fn acquire(&self, resource: &str) -> Result<Answer> {
        let body = json!({"resource": resource, "ownerId": self.pod.name, "ttlSeconds": 60});
        self.acquire_with(&body).await
    }

    /// Tries to take a lock, with a body of one's own.
    pub(crate) async fn acquire_with(&self, body: &Value) -> Result<Answer> {
        self.call(Method::POST, "/v1/locks/acquire", Some(body))
            .await
    }

    /// Renews a lease.
    pub(crate) async fn renew(&self, lease: &str) -> Result<Answer> {
        let path = format!("/v1/locks/{lease}/renew");
        self.call(Method::POST, &path, Some(&json!({}))).await
    }

    /// Ends a lease.
    pub(crate) async fn release(&self, lease: &str) -> Result<Answer> {
        let path = format!("/v1/locks/{lease}");
        self.call(Method::DELETE, &path, None).await
    }

    /// Looks at a lease.
    pub(crate) async fn get(&self, lease: &str) -> Result<Answer> {
        self.call(Method::GET, &format!("/v1/locks/{lease}"), None)
            .await
    }

    /// Lists the namespace's locks by prefix. The prefix goes into the URL as it is.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Answer> {
        let path = format!("/v1/locks?prefix={prefix}");
        self.call(Method::GET, &path, None).await
    }

    /// Asks whether a token is current.
    pub(crate) async fn verify(&self, resource: &str, token: u64) -> Result<Answer> {
        let body = json!({"resource": resource, "fencingToken": token});
        self.call(Method::POST, "/v1/fencing/verify", Some(&body))
            .await
    }

    /// Any call.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer> {
        let asked = now();
        let mut request = self.http.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(http::header::RETRY_AFTER);
        let retry_after = retry_after.and_then(|value| value.to_str().ok().map(str::to_owned));
        let text = response.text().await?;
        Ok(Answer {
            retry_after,
            status,
            json: serde_json::from_str(&text).unwrap_or(Value::String(text)),
            took: now().since(asked),
        })
    }

    /// A call of `/healthz`, `/readyz` or `/metrics`.
    pub(crate) async fn admin(&self, path: &str) -> Result<(u16, String)> {
        let url = format!("{}{path}", self.admin_url);
        let response = self.http.get(url).send().await?;
        Ok((response.status().as_u16(), response.text().await?))
    }

    /// Its process id.
    pub(crate) fn id(&self) -> i32 {
        self.process.id()
    }

    /// Kills it; it has no time to say anything.
    pub(crate) fn kill9(&self) -> Result<()> {
        self.process.kill()
    }

    /// Makes it hang.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Lets a frozen one go on.
    pub(crate) fn thaw(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Asks it to end.
    pub(crate) fn sigterm(&self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// Waits for its end.
    pub(crate) async fn ended(&self) -> Result<ExitStatus> {
        self.process.wait(LIMIT).await
    }

    /// Its log so far: one JSON document a line.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// Its memory, in KiB.
    pub(crate) fn rss_kib(&self) -> Result<u64> {
        self.process.rss_kib()
    }

    /// How long it has computed.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        self.process.cpu_time()
    }
}

impl Drop for Sidecar {
    #[allow(
        clippy::print_stdout,
        reason = "the test runner shows it when the test fails"
    )]
    fn drop(&mut self) {
        if cfg!(test) {
            println!(
                "--- log of the sidecar of {}:\n{}",
                self.pod.name,
                self.log()
            );
        }
    }
}

/// What a sidecar answered.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The body; text that is not JSON is a string.
    pub(crate) json: Value,
    /// How long the call took.
    pub(crate) took: Duration,
    /// The header `Retry-After`, if there is one.
    pub(crate) retry_after: Option<String>,
}

/// A lease that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// Its id.
    pub(crate) id: String,
    /// Its fencing token.
    pub(crate) token: u64,
    /// How long the app may act without asking again.
    pub(crate) valid_for: Duration,
}

impl Answer {
    /// The answer, if it has this status.
    pub(crate) fn expect(self, status: u16) -> Result<Self> {
        ensure!(
            self.status == status,
            "expected {status}, got {}: {}",
            self.status,
            self.json
        );
        Ok(self)
    }

    /// The problem's code; empty where there is no problem.
    pub(crate) fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or_default()
    }

    /// The answer, if it is this problem.
    pub(crate) fn problem(self, status: u16, code: &str) -> Result<Self> {
        let answer = self.expect(status)?;
        ensure!(answer.code() == code, "expected {code}: {}", answer.json);
        Ok(answer)
    }

    /// The lease, if there is one.
    pub(crate) fn granted(self) -> Result<Lease> {
        let Self { json, .. } = self.expect(200)?;
        let valid_for = json["validForMs"].as_u64().context("validForMs")?;
        Ok(Lease {
            id: json["leaseId"].as_str().context("leaseId")?.to_owned(),
            token: json["fencingToken"].as_u64().context("fencingToken")?,
            valid_for: Duration::from_millis(valid_for),
        })
    }
}

/// What listens where, as the log says: (`locks` or `admin`, address).
pub(crate) fn addresses(log: &str) -> Vec<(String, String)> {
    let lines = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let found = lines.filter_map(|line: Value| {
        let fields = line.get("fields").unwrap_or(&line);
        let role = fields.get("api")?.as_str()?.to_owned();
        Some((role, fields.get("addr")?.as_str()?.to_owned()))
    });
    found.collect()
}
