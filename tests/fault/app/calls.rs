//! The app's requests to its sidecar and to the register. Each is recorded in the history before it
//! is sent.

use std::time::Duration;

use anyhow::{Context, Result};
use http::StatusCode;
use serde_json::{Value, json};

use super::{App, Held};
use crate::history::Op;
use crate::recorder::now_ns;

/// The timeout of a request that is answered immediately. A hung sidecar answers late, or never.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewed {
    Yes,
    Lost,
    Unknown,
}

impl App {
    /// Acquires a lock, and waits up to `wait` seconds if it is held.
    pub(super) async fn acquire(&mut self, resource: &str, wait: u64) -> Result<Option<Held>> {
        let mut body = json!({"resource": resource, "ownerId": self.config.name,
            "ttlSeconds": self.dice.u64(2..=5), "waitSeconds": wait});
        if self.dice.u32(0..3) == 0 {
            body["keepSeconds"] = json!(self.dice.u64(1..=20));
        }
        let operation = self.recorder.invoke(Op::acquire(resource))?;
        let sent = now_ns();
        let url = format!("{}/v1/locks/acquire", self.config.sidecar);
        let asked = self.http.post(url).json(&body);
        let limit = PATIENCE + Duration::from_secs(wait);
        match answer(asked.timeout(limit)).await {
            Some((StatusCode::OK, told)) => {
                let held = self.granted(resource, sent, &told)?;
                let Held { lease, token, .. } = &held;
                let granted = Op::granted(resource, lease, *token, held.believes_until);
                self.recorder.ok(operation, granted)?;
                Ok(Some(held))
            }
            Some((status, _)) if status.is_client_error() => {
                self.recorder.fail(operation, Op::acquire(resource))?;
                Ok(None)
            }
            _ => {
                self.recorder.unknown(operation, Op::acquire(resource))?;
                Ok(None)
            }
        }
    }

    /// Returns what the answer to a request of that time grants.
    pub(super) fn granted(&self, resource: &str, sent: u64, told: &Value) -> Result<Held> {
        let number = |name: &'static str| told[name].as_u64().context(name);
        let valid_for = number("validForMs")?;
        // A hold needs no renewal, so its answer has no such field.
        let renew_after = told["renewAfterMs"].as_u64().unwrap_or(valid_for / 3);
        Ok(Held {
            resource: resource.to_owned(),
            lease: told["leaseId"].as_str().context("leaseId")?.to_owned(),
            token: number("fencingToken")?,
            believes_until: self.belief(sent, valid_for),
            renew_at: sent + renew_after * 1_000_000,
        })
    }

    /// Renews a lease.
    pub(super) async fn renew(&mut self, held: &mut Held) -> Result<Renewed> {
        let operation = self.recorder.invoke(Op::renew(&held.lease))?;
        let sent = now_ns();
        let url = format!("{}/v1/locks/{}/renew", self.config.sidecar, held.lease);
        let asked = self.http.post(url).json(&json!({}));
        match answer(asked.timeout(PATIENCE)).await {
            Some((StatusCode::OK, told)) => {
                let renewed = self.granted(&held.resource, sent, &told)?;
                let until = renewed.believes_until;
                self.recorder
                    .ok(operation, Op::renewed(&held.lease, until))?;
                *held = renewed;
                Ok(Renewed::Yes)
            }
            Some((StatusCode::GONE | StatusCode::NOT_FOUND, _)) => {
                self.recorder.fail(operation, Op::renew(&held.lease))?;
                self.recorder.info(Op::lost(&held.lease))?;
                Ok(Renewed::Lost)
            }
            _ => {
                self.recorder.unknown(operation, Op::renew(&held.lease))?;
                // The previous deadline stays; the app renews again a little later.
                held.renew_at = now_ns() + 200_000_000;
                Ok(Renewed::Unknown)
            }
        }
    }

    /// Releases a lock.
    pub(super) async fn release(&mut self, lease: &str) -> Result<()> {
        let operation = self.recorder.invoke(Op::release(lease))?;
        let url = format!("{}/v1/locks/{lease}", self.config.sidecar);
        match answer(self.http.delete(url).timeout(PATIENCE)).await {
            Some((StatusCode::NO_CONTENT, _)) => self.recorder.ok(operation, Op::release(lease)),
            Some((StatusCode::GONE | StatusCode::NOT_FOUND, _)) => {
                self.recorder.fail(operation, Op::release(lease))
            }
            _ => self.recorder.unknown(operation, Op::release(lease)),
        }
    }
}

/// Returns the answer, if it arrived completely and in time.
pub(super) async fn answer(asked: reqwest::RequestBuilder) -> Option<(StatusCode, Value)> {
    let answer = asked.send().await.ok()?;
    let status = answer.status();
    let text = answer.text().await.ok()?;
    Some((status, serde_json::from_str(&text).unwrap_or_default()))
}
