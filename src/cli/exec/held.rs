//! The requests for a lease that is held: a completion, and the release.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use serde_json::json;

use super::hold::{Lease, Problem};
use crate::cli::client::Server;
use crate::protocol::completed::CompletionKey;

/// The release must not delay the end for long: closing the connection releases, too.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);
/// How long one try to record a completion may take.
const COMPLETE_LIMIT: Duration = Duration::from_secs(10);

/// A lease, and the server that gave it.
#[derive(Clone, Debug)]
pub(super) struct HeldLease<'a> {
    pub(super) server: &'a Server,
    pub(super) lease: Lease,
}

impl HeldLease<'_> {
    /// Records that work has succeeded. Without an answer, the record may be there.
    pub(super) async fn complete(&self, key: &CompletionKey) -> Result<(), Problem> {
        let path = format!("/v1/locks/{}/complete", self.lease.id);
        let request = self
            .server
            .request(Method::POST, &path)
            .header(CONTENT_TYPE, "application/json")
            .body(json!({"key": key.as_str()}).to_string())
            .map_err(|error| Problem::transient(&error.into()))?;
        match self.server.send(request, COMPLETE_LIMIT).await {
            Ok(answer) if answer.status == StatusCode::NO_CONTENT => Ok(()),
            Ok(answer) => Err(Problem::parse(answer.status, &answer.body)),
            Err(error) => Err(Problem::transient(&error)),
        }
    }

    /// Releases the lock. Closing the connection would do so, too, and could not be confirmed.
    pub(super) async fn release(&self) {
        let id = &*self.lease.id;
        let path = format!("/v1/locks/{id}");
        let answer = self.server.exchange(Method::DELETE, &path, RELEASE_LIMIT);
        match answer.await {
            Ok(answer) if answer.status == StatusCode::NO_CONTENT => {
                tracing::info!(leaseId = id, "lock released");
            }
            Ok(answer) if answer.status == StatusCode::ACCEPTED => {
                tracing::info!(leaseId = id, "release not confirmed yet");
            }
            Ok(answer) => {
                tracing::warn!(leaseId = id, status = %answer.status, "lock not released");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(leaseId = id, error, "release not confirmed");
            }
        }
    }
}
