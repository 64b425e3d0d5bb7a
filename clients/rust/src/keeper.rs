//! Keeps a lease until it has ended, and then releases what is left of it.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use tokio::time::{sleep, timeout};

use crate::acquire::Pauses;
use crate::engine;
use crate::error::Error;
use crate::lease::{End, Shared};
use crate::wire::{CALL, Nothing, Sidecar};

/// A release that got no answer is repeated after this time.
const RELEASE: Duration = Duration::from_secs(3);

/// Keeps a lease by `work`, in the background. The work does not end by itself: dropping it closes the
/// stream, if it has one.
pub(crate) fn keep(shared: Arc<Shared>, work: impl Future<Output = Infallible> + Send + 'static) {
    engine::spawn(async move {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                () = shared.over() => break,
                never = &mut work => match never {},
                // The timer only wakes; the lease's clock decides.
                () = sleep(shared.sleep()) => {}
            }
        }
        let released = match shared.ended() {
            Some(End::Released) => release(&shared).await,
            Some(end) if end.is_silence() => {
                // The sidecar may keep the lock for longer.
                engine::spawn(drop_lease(shared.sidecar.clone(), shared.path()));
                Ok(())
            }
            _ => Ok(()),
        };
        shared.report(released);
    });
}

async fn release(shared: &Shared) -> Result<(), Error> {
    let limit = shared.time_to_release();
    let result = delete(&shared.sidecar, &shared.path(), limit).await;
    let resource = &shared.grant.resource;
    match result {
        Ok(202) => tracing::warn!(resource, "release pending"),
        Ok(_) => {}
        Err(error @ Error::Lost { .. }) => return Err(error),
        Err(error) => {
            tracing::warn!(resource, %error, "release not confirmed");
            engine::spawn(drop_lease(shared.sidecar.clone(), shared.path()));
        }
    }
    Ok(())
}

/// Releases a lease that the app does not have. Without an answer its lock is free later.
pub(crate) async fn drop_lease(sidecar: Sidecar, path: String) {
    let _free_later = delete(&sidecar, &path, CALL).await;
}

/// Repeats a release that got no answer.
async fn delete(sidecar: &Sidecar, path: &str, limit: Duration) -> Result<u16, Error> {
    let mut pauses = Pauses::default();
    let attempts = async {
        loop {
            let result = sidecar
                .order(Method::DELETE, path, &Nothing {}, RELEASE)
                .await;
            if !result.as_ref().is_err_and(Error::may_pass) {
                return result;
            }
            sleep(pauses.next()).await;
        }
    };
    timeout(limit, attempts)
        .await
        .unwrap_or_else(|_| Err(sidecar.slow()))
}
