//! Reads objects that may be absent, or that the user must not read. Any other error ends the command.
//!
//! The API server refuses requests on a kind while it takes in a changed definition, so a request that it refuses as
//! one too many is repeated a few times. None of the requests changes anything.

use std::time::Duration;

use serde_json::Value;

use crate::cli::kubectl::api::Api;
use crate::cli::kubectl::failure::Failure;
use crate::cli::kubectl::fetch::{self, known};
use crate::kubectl::world::Known;

/// How often a request is repeated at most, and how long after the last answer.
const REPEATED: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// Sends a request, again if the API server has no time for it.
pub(super) async fn patiently<T>(
    mut send: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    for _ in 0..REPEATED {
        match send().await {
            Err(Failure::Refused { reason, .. }) if reason == "TooManyRequests" => {
                tokio::time::sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
    send().await
}

/// Reads an object; `None` if it or its kind does not exist.
pub(super) async fn find(api: &Api, path: &str) -> Result<Known<Option<Value>>, Failure> {
    known(match patiently(async || api.find(path).await).await {
        Err(Failure::NotInstalled) => Ok(None),
        found => found,
    })
}

/// Reads the objects of a list; none if their kind does not exist. `query` is what follows the `?`.
pub(super) async fn list(api: &Api, path: &str, query: &str) -> Result<Known<Vec<Value>>, Failure> {
    let read = patiently(async || {
        let mut found = Vec::new();
        api.each(path, query, |object| found.push(object)).await?;
        Ok(found)
    });
    known(match read.await {
        Err(Failure::NotInstalled | Failure::NotFound(_)) => Ok(Vec::new()),
        read => read,
    })
}

/// Asks whether a subject may do something, as [`fetch::may`].
pub(super) async fn may(api: &Api, kind: &str, spec: &Value) -> Result<Known<bool>, Failure> {
    patiently(async || fetch::may(api, kind, spec).await).await
}
