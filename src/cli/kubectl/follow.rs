//! Follows one lock until something has happened to it, or a time has passed.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use http::StatusCode;
use kube::Api as KubeApi;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::Value;

use super::api::Api;
use super::failure::Failure;
use crate::crd::DistributedLock;

/// Calls `decide` with each state of a lock object, the present one first (`None`: it does not exist), until it returns
/// something. Returns `None` if that takes longer than `limit`.
///
/// # Errors
/// If the user must not watch locks. An API server that is away is waited for.
pub(super) async fn until<T>(
    api: &Api,
    name: &str,
    limit: Option<Duration>,
    mut decide: impl FnMut(Option<&Value>) -> Option<T>,
) -> Result<Option<T>, Failure> {
    let kind = ApiResource::erase::<DistributedLock>(&());
    let locks: KubeApi<DynamicObject> =
        KubeApi::namespaced_with(api.client(), &api.namespace, &kind);
    let mut states = pin!(watcher::watch_object(locks, name).default_backoff());
    let mut refusals = Refusals::default();
    let followed = async {
        while let Some(state) = states.next().await {
            let object = match state {
                Ok(object) => object,
                Err(error) => match refusals.judge(&error) {
                    Some(refused) => return Err(refused),
                    None => continue,
                },
            };
            refusals.begun();
            let object = object.map(|object| serde_json::to_value(object).unwrap_or_default());
            if let Some(done) = decide(object.as_ref()) {
                return Ok(Some(done));
            }
        }
        Ok(None)
    };
    let done = match limit {
        None => followed.await?,
        Some(limit) => match tokio::time::timeout(limit, followed).await {
            Ok(done) => done?,
            Err(_elapsed) => None,
        },
    };
    match refusals.last {
        // Time alone would not have helped.
        Some(refused) if done.is_none() => Err(refused),
        _ => Ok(done),
    }
}

/// How many refusals in a row a watch survives that has begun. With the pauses between them it takes about half a minute
/// until the last one.
const TOLERATED: u32 = 5;

/// Decides which errors end a watch.
///
/// A refusal does: the user must not watch, or the kind does not exist. But an API server that has just started refuses,
/// too, before it has read its roles and definitions. So a watch that has begun ends only if it is refused repeatedly.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// `None` before the watch has begun.
    tolerated: Option<u32>,
    /// The last refusal, until the watch shows a state again.
    last: Option<Failure>,
}

impl Refusals {
    /// Records that the watch has shown a state.
    pub(super) fn begun(&mut self) {
        *self = Self {
            tolerated: Some(TOLERATED),
            last: None,
        };
    }

    /// Returns the error that ends the watch, if this one does.
    pub(super) fn judge(&mut self, error: &watcher::Error) -> Option<Failure> {
        let refused = refusal(error);
        match (&mut self.tolerated, refused) {
            (tolerated, None) => {
                // The API server is away, and will be starting.
                *tolerated = tolerated.map(|_| TOLERATED);
                None
            }
            (Some(left), refused @ Some(_)) if *left > 0 => {
                *left -= 1;
                self.last = refused;
                None
            }
            (_, refused) => refused,
        }
    }
}

/// Returns the error if the API server refuses the watch.
fn refusal(error: &watcher::Error) -> Option<Failure> {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) =
        error
    else {
        return None;
    };
    let kube::Error::Api(status) = error else {
        return None;
    };
    let code = StatusCode::from_u16(status.code).ok()?;
    let lasts = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
    ]
    .contains(&code);
    let body = serde_json::to_vec(status).unwrap_or_default();
    lasts.then(|| Failure::of_answer(code, &body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn error(code: u16) -> watcher::Error {
        let status = Status::failure("cannot watch", "x").with_code(code);
        watcher::Error::WatchStartFailed(kube::Error::Api(status.boxed()))
    }

    #[test]
    fn first_refusal_ends_a_watch_that_has_not_begun() {
        for code in [401, 403, 404] {
            assert!(Refusals::default().judge(&error(code)).is_some(), "{code}");
        }
        for code in [429, 500, 503] {
            assert!(Refusals::default().judge(&error(code)).is_none(), "{code}");
        }
    }

    #[test]
    fn watch_survives_an_api_server_that_is_starting() {
        let mut refusals = Refusals::default();
        refusals.begun();
        for _ in 0..3 {
            assert!(refusals.judge(&error(503)).is_none());
            for _ in 0..TOLERATED {
                assert!(refusals.judge(&error(403)).is_none());
            }
        }
        assert!(refusals.judge(&error(403)).is_some());
    }
}
