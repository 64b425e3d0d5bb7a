//! Serving a router on a listener, within bounds, until told to stop.
//!
//! Where all places are taken, a connection that is not at work makes room for a new one (`places`).
//! It knows nothing of locks, nor what kind of connection it serves (`listener`). What it does not
//! do: HTTP/2, or waiting for ever; a client that is still connected some seconds after the stop is
//! cut off.

mod connection;
mod listener;
mod places;
mod socket;
mod tls;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Body as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use connection::Noted;
pub(super) use connection::{Connection, paced};
pub use listener::{Listener, Transport};
use places::{Place, Places};
use socket::Noting;
pub use tls::TlsListener;

/// What one listener takes on.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many connections are served at once. For more, idle ones are closed.
    pub connections: usize,
    /// How long a head may take to arrive. hyper counts an idle kept-alive connection's next head
    /// too.
    pub head_timeout: Duration,
}

impl Bounds {
    /// For the apps of the pod. Closing an idle connection just as a client sends on it fails a
    /// request that the client may not repeat, so it stays open for longer than client libraries
    /// keep one (90 s is common). There is room for all who wait in line, for all streams of
    /// events, and for as many others.
    pub const API: Self = Self {
        connections: 1536,
        head_timeout: Duration::from_secs(120),
    };
    /// For kubelet and Prometheus, on an address that others reach too: every question may be
    /// asked again, so nobody needs to hold a connection for long.
    pub const ADMIN: Self = Self {
        connections: 64,
        head_timeout: Duration::from_secs(10),
    };
    /// For API servers, of which there are few; each keeps idle connections for 90 s, and repeats
    /// no request that met the end of one.
    pub const WEBHOOK: Self = Self {
        connections: 256,
        head_timeout: Duration::from_secs(120),
    };
}

/// How much of a request a connection buffers, its head included.
const BUFFER_MAX_BYTES: usize = 64 * 1024;
/// How long a connection may take to be opened.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the requests under way have to end after the stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// A pause after a failed accept, such as when no file descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`; then ends the idle connections, gives the busy ones some seconds, and
/// returns.
pub async fn serve(
    listener: impl Listener,
    router: Router,
    bounds: Bounds,
    shutdown: CancellationToken,
) {
    let listener = Arc::new(listener);
    let places = Places::new(bounds.connections);
    let connections = TaskTracker::new();
    let cut_off = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(listener.as_ref(), &places) => accepted,
        };
        let Some((raw, connection, place)) = accepted else {
            continue;
        };
        let opening = open(listener.clone(), raw);
        let (router, handle, stop) = (router.clone(), connection.clone(), shutdown.clone());
        let served = async move {
            // Who has not even opened it has asked for nothing yet.
            let opened = tokio::select! {
                () = stop.cancelled() => None,
                opened = opening => opened,
            };
            if let Some(stream) = opened {
                serve_one(stream, handle, router, bounds, stop).await;
            }
        };
        let cut_off = cut_off.clone();
        connections.spawn(async move {
            tokio::select! {
                () = cut_off.cancelled() => {}
                () = connection.closed() => {}
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
        tracing::warn!(connections = connections.len(), "closing open connections");
        cut_off.cancel();
        connections.wait().await;
    }
}

/// A connection and the place that it takes, or none when accepting failed.
async fn accept<L: Listener>(listener: &L, places: &Places) -> Option<(L::Raw, Connection, Place)> {
    match listener.accept().await {
        Ok(raw) => {
            let (connection, place) = places.take().await;
            Some((raw, connection, place))
        }
        Err(error) => {
            // As likely as not no file descriptor is left; an idle connection has one.
            let is_one_closed = places.close_one();
            tracing::warn!(%error, closedIdle = is_one_closed, "accepting a connection failed");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// What is served of a connection, or none where it does not come to that.
async fn open<L: Listener>(listener: Arc<L>, raw: L::Raw) -> Option<L::Stream> {
    match tokio::time::timeout(OPEN_TIMEOUT, listener.open(raw)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "opening a connection failed");
            None
        }
        Err(_elapsed) => {
            tracing::debug!("opening a connection timed out");
            None
        }
    }
}

async fn serve_one(
    stream: impl Transport,
    connection: Connection,
    router: Router,
    bounds: Bounds,
    shutdown: CancellationToken,
) {
    let stream = Noting::new(stream, connection.clone());
    let service = service_fn(move |mut request: http::Request<_>| {
        let (router, connection) = (router.clone(), connection.clone());
        async move {
            connection.begin(request.is_end_stream());
            request.extensions_mut().insert(connection.clone());
            let request =
                request.map(|body| Noted::new(body, connection.clone(), Connection::note_request));
            let answer = router.oneshot(request).await;
            answer.map(|answer| {
                answer.map(|body| Noted::new(body, connection, Connection::note_answer))
            })
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_timeout)
        .max_buf_size(BUFFER_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), service);
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
        tracing::debug!(%error, "connection failed");
    }
}
