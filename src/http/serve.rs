//! Serves a router on a listener, within bounds, until shutdown.
//!
//! If all slots are taken, an inactive connection is closed for a new one (`slots`). It does not
//! know locks, nor the kind of connection (`listener`). It does not support HTTP/2, and never waits
//! forever: a client that is still connected some seconds after the shutdown is disconnected.

mod connection;
mod listener;
mod slots;
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

use connection::TrackedBody;
pub(super) use connection::{Connection, paced};
pub use listener::{Listener, Transport};
use slots::{ConnectionSlots, Slot};
use socket::TrackedSocket;
pub use tls::TlsListener;

/// The limits of one listener.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The maximum number of connections. Idle ones are closed for new ones.
    pub connections: usize,
    /// How long a request's head may take to arrive. hyper also counts the idle time of a
    /// kept-alive connection.
    pub head_timeout: Duration,
}

impl Bounds {
    /// For the apps of the pod. Closing an idle connection at the moment of a request fails a
    /// request that the client may not repeat. So it stays open longer than client libraries keep
    /// it (90 s is common). There is room for all waiters, all event streams, and as many others.
    pub const API: Self = Self {
        connections: 1536,
        head_timeout: Duration::from_secs(120),
    };
    /// For kubelet and Prometheus, on an address that other clients reach, too. Every request can
    /// be repeated, so no client needs a connection for long.
    pub const ADMIN: Self = Self {
        connections: 64,
        head_timeout: Duration::from_secs(10),
    };
    /// For API servers, of which there are few. Each keeps idle connections for 90 s, and does not
    /// repeat a request that met the end of one.
    pub const WEBHOOK: Self = Self {
        connections: 256,
        head_timeout: Duration::from_secs(120),
    };
}

/// The buffer of a connection, including the head of a request.
const BUFFER_MAX_BYTES: usize = 64 * 1024;
/// How long opening a connection may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long active requests may continue after the shutdown.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after a failed accept, for example without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then closes idle connections, gives active ones some seconds, and
/// returns.
pub async fn serve(
    listener: impl Listener,
    router: Router,
    bounds: Bounds,
    shutdown: CancellationToken,
) {
    let listener = Arc::new(listener);
    let slots = ConnectionSlots::new(bounds.connections);
    let connections = TaskTracker::new();
    let abort = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(listener.as_ref(), &slots) => accepted,
        };
        let Some((raw, connection, slot)) = accepted else {
            continue;
        };
        let opening = open(listener.clone(), raw);
        let (router, handle, stop) = (router.clone(), connection.clone(), shutdown.clone());
        let served = async move {
            // A connection that is not open yet has sent no request.
            let opened = tokio::select! {
                () = stop.cancelled() => None,
                opened = opening => opened,
            };
            if let Some(stream) = opened {
                serve_one(stream, handle, router, bounds, stop).await;
            }
        };
        let abort = abort.clone();
        connections.spawn(async move {
            tokio::select! {
                () = abort.cancelled() => {}
                () = connection.closed() => {}
                () = served => {}
            }
            drop(slot);
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(STOP_TIMEOUT, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!(connections = connections.len(), "closing open connections");
        abort.cancel();
        connections.wait().await;
    }
}

/// Accepts a connection and takes a slot for it; `None` after an error.
async fn accept<L: Listener>(
    listener: &L,
    slots: &ConnectionSlots,
) -> Option<(L::Raw, Connection, Slot)> {
    match listener.accept().await {
        Ok(raw) => {
            let (connection, slot) = slots.acquire().await;
            Some((raw, connection, slot))
        }
        Err(error) => {
            // Probably no file descriptor is left; closing an idle connection frees one.
            let has_closed = slots.close_idle();
            tracing::warn!(%error, closedIdle = has_closed, "accepting a connection failed");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// Opens a connection; `None` after an error or a timeout.
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
    let stream = TrackedSocket::new(stream, connection.clone());
    let service = service_fn(move |mut request: http::Request<_>| {
        let (router, connection) = (router.clone(), connection.clone());
        async move {
            connection.begin(request.is_end_stream());
            request.extensions_mut().insert(connection.clone());
            let request = request
                .map(|body| TrackedBody::new(body, connection.clone(), Connection::set_busy));
            let answer = router.oneshot(request).await;
            answer.map(|answer| {
                answer.map(|body| TrackedBody::new(body, connection, Connection::set_answered))
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
    // A disconnected client is not an error of the server.
    if let Err(error) = ended {
        tracing::debug!(%error, "connection failed");
    }
}
