//! Our binary as a separate process, in place of a pod's sidecar, and its HTTP API.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};

use super::pod::Pod;
use super::role::{Role, through};
use super::wait::{PATIENCE, eventually, now};

/// The options for starting a sidecar.
pub(crate) struct Launch {
    binary: PathBuf,
    pod: Pod,
    listen: String,
    admin_listen: String,
    log_level: &'static str,
    args: Vec<String>,
    through: Vec<String>,
}

/// A running sidecar. Dropping it kills it.
pub(crate) struct Sidecar {
    /// Where it listens: `http://127.0.0.1:PORT`.
    pub(crate) url: String,
    role: Role,
    http: reqwest::Client,
}

impl Deref for Sidecar {
    type Target = Role;

    fn deref(&self) -> &Role {
        &self.role
    }
}

impl Launch {
    /// Sets the TTL of its sessions; default: 15 s.
    pub(crate) fn session_ttl(self, seconds: u64) -> Self {
        self.arg("--session-ttl").arg(&seconds.to_string())
    }

    /// Sets the addresses where it listens; default: free ports.
    pub(crate) fn listen(self, api: &str, admin: &str) -> Self {
        Self {
            listen: api.to_owned(),
            admin_listen: admin.to_owned(),
            ..self
        }
    }

    /// Uses the default log level instead of all levels.
    pub(crate) fn default_log(self) -> Self {
        Self {
            log_level: "info",
            ..self
        }
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Starts it by another program with these arguments, which executes it (`env`, `nsenter`).
    pub(crate) fn through(self, command: &[String]) -> Self {
        Self {
            through: command.to_vec(),
            ..self
        }
    }

    /// Starts it and waits until it listens.
    pub(crate) async fn start(self) -> Result<Sidecar> {
        let mut command = through(&self.through, &self.binary);
        command
            .arg("sidecar")
            .args(["--listen", &self.listen])
            .args(["--admin-listen", &self.admin_listen])
            .args(["--node-name", "node-1"])
            .args(["--log-level", self.log_level])
            .args(&self.args);
        let (role, listening) = Role::start("sidecar", command, &self.pod).await?;
        let locks = listening.iter().find(|(what, _)| what == "locks");
        let (_, address) = locks.context("a sidecar serves locks")?;
        Ok(Sidecar {
            url: format!("http://{address}"),
            role,
            http: reqwest::Client::new(),
        })
    }
}

impl Sidecar {
    /// Returns the options for a sidecar of a pod. `binary` is ours; the including test knows its
    /// path.
    pub(crate) fn launch(binary: &str, pod: &Pod) -> Launch {
        Launch {
            binary: binary.into(),
            pod: pod.clone(),
            listen: "127.0.0.1:0".to_owned(),
            admin_listen: "127.0.0.1:0".to_owned(),
            log_level: "debug",
            args: vec![],
            through: vec![],
        }
    }

    /// Starts a sidecar for a pod, with defaults.
    pub(crate) async fn start(binary: &str, pod: &Pod) -> Result<Self> {
        Self::launch(binary, pod).start().await
    }

    /// Tries to acquire a lock, for an app with the pod's name and a TTL of 60 s.
    pub(crate) async fn acquire(&self, resource: &str) -> Result<Answer> {
        let body = json!({"resource": resource, "ownerId": self.pod.name, "ttlSeconds": 60});
        self.acquire_with(&body).await
    }

    /// The same, for an app with a TTL of an hour: the next call may come as late as a slow machine
    /// needs.
    pub(crate) async fn acquire_for_long(&self, resource: &str) -> Result<Answer> {
        let body = json!({"resource": resource, "ownerId": self.pod.name, "ttlSeconds": 3600});
        self.acquire_with(&body).await
    }

    /// Tries to acquire a lock, with this body.
    pub(crate) async fn acquire_with(&self, body: &Value) -> Result<Answer> {
        self.call(Method::POST, "/v1/locks/acquire", Some(body))
            .await
    }

    /// Renews a lease.
    pub(crate) async fn renew(&self, lease: &str) -> Result<Answer> {
        let path = format!("/v1/locks/{lease}/renew");
        self.call(Method::POST, &path, Some(&json!({}))).await
    }

    /// Releases a lease.
    pub(crate) async fn release(&self, lease: &str) -> Result<Answer> {
        let path = format!("/v1/locks/{lease}");
        self.call(Method::DELETE, &path, None).await
    }

    /// Releases a lease, and retries until the store has confirmed it: an answer waits two seconds
    /// for that, and a busy machine may take longer. Returns the total time.
    pub(crate) async fn release_for_good(&self, lease: &str) -> Result<Duration> {
        let asked = now();
        let answer = eventually("a release to be confirmed", PATIENCE, async || {
            let answer = self.release(lease).await;
            let is_pending = answer.as_ref().is_ok_and(|answer| answer.status == 202);
            (!is_pending).then_some(answer)
        });
        answer.await??.expect(204)?;
        Ok(now().since(asked))
    }

    /// Reads a lease.
    pub(crate) async fn get(&self, lease: &str) -> Result<Answer> {
        self.call(Method::GET, &format!("/v1/locks/{lease}"), None)
            .await
    }

    /// Lists the namespace's locks by prefix. The prefix is not encoded in the URL.
    pub(crate) async fn list(&self, prefix: &str) -> Result<Answer> {
        let path = format!("/v1/locks?prefix={prefix}");
        self.call(Method::GET, &path, None).await
    }

    /// Verifies whether a token is current.
    pub(crate) async fn verify(&self, resource: &str, token: u64) -> Result<Answer> {
        let body = json!({"resource": resource, "fencingToken": token});
        self.call(Method::POST, "/v1/fencing/verify", Some(&body))
            .await
    }

    /// Makes any call.
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
}

/// A sidecar's answer.
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
    /// How long the app may act without another request.
    pub(crate) valid_for: Duration,
}

impl Answer {
    /// Returns the answer, if it has this status.
    pub(crate) fn expect(self, status: u16) -> Result<Self> {
        ensure!(
            self.status == status,
            "expected {status}, got {}: {}",
            self.status,
            self.json
        );
        Ok(self)
    }

    /// Returns the problem's code, or an empty text without a problem.
    pub(crate) fn code(&self) -> &str {
        self.json["code"].as_str().unwrap_or_default()
    }

    /// Returns the answer, if it is this problem.
    pub(crate) fn problem(self, status: u16, code: &str) -> Result<Self> {
        let answer = self.expect(status)?;
        ensure!(answer.code() == code, "expected {code}: {}", answer.json);
        Ok(answer)
    }

    /// Returns the lease, if there is one.
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
