//! Serving a router on a listener, within bounds, until told to stop.
//!
//! It knows nothing of locks. What it does not do: TLS, HTTP/2, or waiting for ever; a client that
//! is still connected some seconds after the stop is cut off.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What one listener takes on.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many connections are served at once; more wait to be accepted.
    pub connections: usize,
    /// How long a head may take to arrive. hyper counts an idle kept-alive connection's next head
    /// too.
    pub head_timeout: Duration,
}

impl Bounds {
    /// For the apps of the pod. Closing an idle connection just as a client sends on it fails a
    /// request that the client may not repeat, so it stays open for longer than client libraries
    /// keep one (90 s is common).
    pub const API: Self = Self {
        connections: 1024,
        head_timeout: Duration::from_secs(120),
    };
    /// For kubelet and Prometheus, on an address that others reach too: every question may be
    /// asked again, so nobody needs to hold a connection for long.
    pub const ADMIN: Self = Self {
        connections: 64,
        head_timeout: Duration::from_secs(10),
    };
}

/// How much of a request a connection buffers, its head included.
const BUFFER_MAX_BYTES: usize = 64 * 1024;
/// How long the requests under way have to end after the stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// A pause after a failed accept, such as when no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`; then ends the idle connections, gives the busy ones some seconds, and
/// returns.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    shutdown: CancellationToken,
) {
    let free = Arc::new(Semaphore::new(bounds.connections));
    let connections = TaskTracker::new();
    let cut_off = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &free) => accepted,
        };
        let Some((stream, place)) = accepted else {
            continue;
        };
        let served = connection(stream, router.clone(), bounds, shutdown.clone());
        let cut_off = cut_off.clone();
        connections.spawn(async move {
            tokio::select! {
                () = cut_off.cancelled() => {}
                () = served => {}
            }
            drop(place);
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(STOP_TIMEOUT, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(connections = connections.len(), "connections were cut off");
        cut_off.cancel();
        connections.wait().await;
    }
}

/// A connection and the place that it takes, or none when accepting failed.
async fn accept(
    listener: &TcpListener,
    free: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = if let Ok(place) = free.clone().try_acquire_owned() {
        place
    } else {
        tracing::warn!(
            "all connections are taken; new ones wait, and with them renewals and releases of \
             clients that have none open"
        );
        free.clone().acquire_owned().await.ok()?
    };
    match listener.accept().await {
        Ok((stream, _peer)) => Some((stream, place)),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    bounds: Bounds,
    shutdown: CancellationToken,
) {
    // Answers are small: held back for more to come they would only be late.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_timeout)
        .max_buf_size(BUFFER_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = shutdown.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    // A client that goes away is no failure of ours.
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}
