//! Verifies tokens by a sidecar, which reads the lock in the API server, and reports refused writes to it.

use std::time::Duration;

use async_trait::async_trait;
use http::header::CONTENT_TYPE;
use http::uri::Authority;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cli::client::{Response, Server};
use crate::fence::{Refused, Report, ReportError, Verdict, Verify};
use crate::protocol::ids::Resource;
use crate::protocol::token::Token;
use crate::store::cluster::GUARD_MAX_BYTES;

/// The sidecar's own limit for a read is shorter.
const LIMIT: Duration = Duration::from_secs(10);

/// A sidecar.
pub(super) struct Sidecar {
    server: Server,
    /// What the fence calls itself in its reports.
    guard: String,
}

impl Sidecar {
    /// Creates a client for a fence in front of this service.
    pub(super) fn new(server: Server, upstream: Option<&Authority>) -> Self {
        let mut guard = match upstream {
            Some(upstream) => format!("leasehold fence of {upstream}"),
            None => "leasehold fence".to_owned(),
        };
        guard.truncate(GUARD_MAX_BYTES); // An authority is ASCII.
        Self { server, guard }
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Response, String> {
        let request = self
            .server
            .request(Method::POST, path)
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string())
            .map_err(|error| error.to_string())?;
        let sent = self.server.send(request, LIMIT).await;
        sent.map_err(|error| format!("the sidecar at {} failed: {error:#}", self.server))
    }
}

#[async_trait]
impl Verify for Sidecar {
    async fn verify(&self, resource: &Resource, token: Token) -> Result<Verdict, String> {
        let body = json!({"resource": resource.as_str(), "fencingToken": token.get()});
        verdict(&self.post("/v1/fencing/verify", &body).await?)
    }
}

#[async_trait]
impl Report for Sidecar {
    async fn report(&self, refused: &Refused) -> Result<(), ReportError> {
        let body = json!({
            "resource": refused.resource.as_str(),
            "fencingToken": refused.token.get(),
            "latestFencingToken": refused.latest.get(),
            "guard": self.guard,
        });
        let sent = self.post("/v1/fencing/refusals", &body).await;
        let response = sent.map_err(|detail| ReportError {
            detail,
            is_transient: true,
        })?;
        if response.status == StatusCode::OK {
            return Ok(());
        }
        Err(ReportError {
            detail: refusal_of(&response),
            is_transient: response.status.is_server_error(),
        })
    }
}

fn verdict(response: &Response) -> Result<Verdict, String> {
    let document: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    if response.status == StatusCode::OK && document["current"] == true {
        return Ok(Verdict::Current);
    }
    let latest = document["latestFencingToken"].as_u64().map(Token::from_raw);
    match (document["code"].as_str(), latest) {
        (Some("stale_token"), Some(latest)) => Ok(Verdict::Stale { latest }),
        (Some("unknown_token"), Some(latest)) => Ok(Verdict::Unknown { latest }),
        _ => Err(refusal_of(response)),
    }
}

fn refusal_of(response: &Response) -> String {
    let document: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let detail = document["detail"].as_str().unwrap_or("no problem document");
    format!("the sidecar answered {}: {detail}", response.status)
}
