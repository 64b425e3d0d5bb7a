//! One keep-alive connection to a sidecar, as an app in any language has. The client is as small as
//! possible, so that a measurement through it shows the cost of the sidecar.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use axum::body::Body;
use http::{Method, Request};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::harness::{Sidecar, now};

/// More bytes than any answer has.
const LONGEST: usize = 1 << 20;

/// A keep-alive connection.
pub(crate) struct KeptAlive {
    sender: SendRequest<Body>,
    host: String,
}

impl KeptAlive {
    pub(crate) async fn to(sidecar: &Sidecar) -> Result<Self> {
        let host = sidecar.url.strip_prefix("http://").context("a plain URL")?;
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // This task ends when the sender is dropped.
        tokio::spawn(connection);
        Ok(Self {
            sender,
            host: host.to_owned(),
        })
    }

    /// Acquires a free lock, and returns the lease's id.
    pub(crate) async fn acquire(&mut self, resource: &str) -> Result<String> {
        self.acquire_with(resource, json!({})).await
    }

    /// Acquires a lock that its pod keeps between leases.
    pub(crate) async fn acquire_kept(&mut self, resource: &str) -> Result<String> {
        let more = json!({"keepSeconds": 60});
        self.acquire_with(resource, more).await
    }

    /// Waits in the queue for a lock.
    pub(crate) async fn wait_for(&mut self, resource: &str) -> Result<String> {
        let more = json!({"waitSeconds": 60});
        self.acquire_with(resource, more).await
    }

    async fn acquire_with(&mut self, resource: &str, more: Value) -> Result<String> {
        let mut body = json!({"resource": resource, "ownerId": "bench", "ttlSeconds": 3600});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        let answer = self.call(Method::POST, "/v1/locks/acquire", Some(&body));
        let lease = answer.await?;
        Ok(lease["leaseId"].as_str().context("leaseId")?.to_owned())
    }

    /// Renews a lease.
    pub(crate) async fn renew(&mut self, lease: &str) -> Result<()> {
        let path = format!("/v1/locks/{lease}/renew");
        let answer = self.call(Method::POST, &path, Some(&json!({}))).await;
        answer.map(drop)
    }

    /// Ends a lease.
    pub(crate) async fn release(&mut self, lease: &str) -> Result<()> {
        let path = format!("/v1/locks/{lease}");
        self.call(Method::DELETE, &path, None).await.map(drop)
    }

    /// Makes a call that must succeed. Returns null for an answer without a body.
    async fn call(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, &self.host);
        let request = match body {
            Some(body) => request
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        let answer = self.sender.send_request(request?).await?;
        let status = answer.status();
        let body = axum::body::to_bytes(Body::new(answer.into_body()), LONGEST).await?;
        // Unread data of this answer must not delay the next call.
        self.sender.ready().await?;
        ensure!(
            status.is_success(),
            "{status}: {}",
            String::from_utf8_lossy(&body)
        );
        if body.is_empty() {
            return Ok(Value::Null);
        }
        Ok(serde_json::from_slice(&body)?)
    }
}

/// The rate of consecutive calls over one connection.
pub(crate) struct Rate {
    /// Calls per second of wall-clock time, which includes this process and the connection.
    pub(crate) per_second: f64,
    /// Calls per CPU second of the sidecar: its rate if it had one core for itself.
    pub(crate) per_core_second: f64,
}

impl Rate {
    /// Measures the rate of `times` calls.
    pub(crate) async fn of(
        sidecar: &Sidecar,
        times: u32,
        mut call: impl AsyncFnMut() -> Result<()>,
    ) -> Result<Self> {
        let (begin, computed) = (now(), sidecar.cpu_time()?);
        for _ in 0..times {
            call().await?;
        }
        let computed = sidecar.cpu_time()?.saturating_sub(computed);
        let per = |took: Duration| f64::from(times) / took.as_secs_f64();
        Ok(Self {
            per_second: per(now().since(begin)),
            per_core_second: per(computed),
        })
    }
}
