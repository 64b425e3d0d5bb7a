//! The lease under which `leasehold exec` runs this process. The fence forwards only while it is valid: exec ends the
//! process before, but not in time if both were suspended.

use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::StatusCode;
use serde_json::Value;

use crate::cli::client::Server;
use crate::clock::{Clock as _, SystemClock};
use crate::fence::Lead;
use crate::protocol::time::Moment;

/// The limit of a read of the lease, by the agent of this pod or process.
const LIMIT: Duration = Duration::from_secs(2);
/// The pauses between reads are a quarter of the rest, within these.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(5)];

/// The lease.
pub(super) struct Lease {
    agent: Server,
    path: String,
    until: Mutex<Moment>,
}

impl Lease {
    /// Reads the lease that the variables of exec name. Without an answer the lead begins with the first one.
    ///
    /// # Errors
    /// A variable is missing or wrong, or the lease is over.
    pub(super) async fn of_exec() -> anyhow::Result<Arc<Self>> {
        let agent = Server::parse(&variable("LEASEHOLD_URL")?).map_err(anyhow::Error::msg);
        let lease = Self {
            agent: agent.context("LEASEHOLD_URL")?,
            path: format!("/v1/locks/{}", variable("LEASEHOLD_LEASE_ID")?),
            until: Mutex::new(SystemClock.now()),
        };
        match lease.read().await {
            Ok(true) => {}
            Ok(false) => bail!("--leader: the lease of `leasehold exec` is over"),
            Err(error) => log(&error),
        }
        Ok(Arc::new(lease))
    }

    /// Follows the lease until it is over. Without answers the lead ends at its deadline, and begins again with the next
    /// answer.
    pub(super) async fn follow(&self) {
        let mut has_failed = false;
        loop {
            let rest = self.until().since(SystemClock.now());
            let [least, most] = PAUSES;
            tokio::time::sleep((rest / 4).clamp(least, most)).await;
            match self.read().await {
                Ok(true) => has_failed = false,
                Ok(false) => return,
                Err(error) => {
                    if !has_failed {
                        log(&error);
                    }
                    has_failed = true;
                }
            }
        }
    }

    /// Returns whether the lease is valid.
    async fn read(&self) -> anyhow::Result<bool> {
        let asked = SystemClock.now();
        let response = self.agent.get(&self.path, LIMIT).await?;
        // The lease is over, or of another agent.
        if matches!(response.status, StatusCode::NOT_FOUND | StatusCode::GONE) {
            self.set(asked);
            return Ok(false);
        }
        let document: Value = serde_json::from_slice(&response.body).unwrap_or_default();
        let valid_for = document["validForMs"].as_u64();
        let Some(valid_for) = valid_for.filter(|_| response.status.is_success()) else {
            let detail = document["detail"].as_str().unwrap_or("no problem document");
            bail!("{} answered {}: {detail}", self.agent, response.status);
        };
        // The validity counts from before the request.
        self.set(asked.after(Duration::from_millis(valid_for)));
        Ok(true)
    }

    fn set(&self, until: Moment) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

impl Lead for Lease {
    fn until(&self) -> Moment {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log(error: &anyhow::Error) {
    tracing::warn!(error = format!("{error:#}"), "reading the lease failed");
}

fn variable(name: &str) -> anyhow::Result<String> {
    let value = env::var(name).ok().filter(|value| !value.is_empty());
    value.with_context(|| {
        format!(
            "--leader: {name} is missing; start the fence by `leasehold exec --lock NAME -- leasehold fence --leader …`"
        )
    })
}
