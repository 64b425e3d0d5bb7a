//! Serves clients by HTTP/1.1 and, without TLS, HTTP/2, within limits, until it drains.

use std::io::Cursor;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handler::Handler;
use super::{CONNECTION_WINDOW, KEEP_ALIVE, STREAM_WINDOW};

/// What an HTTP/2 connection begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The buffer of a connection, including the head of a request.
const BUFFER_MAX_BYTES: usize = 64 * 1024;
const HEADERS_MAX_BYTES: u32 = 32 * 1024;
/// The maximum number of requests at once of an HTTP/2 connection.
const STREAMS_MAX: u32 = 128;
/// An HTTP/2 client that does not answer a ping within this time is disconnected.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause after a failed accept, for example without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// The maximum number at once. More wait in the system's queue.
    pub open: usize,
    /// How long the head of a request may take, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// How long requests may continue after the stop began.
    pub drain: Duration,
}

/// Serves until `stop`, then lets requests end, for a limited time.
pub(super) async fn serve(
    listener: TcpListener,
    handler: Arc<Handler>,
    limits: ConnectionLimits,
    stop: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(limits.open));
    let connections = TaskTracker::new();
    let abort = CancellationToken::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = async {
                let slot = slots.clone().acquire_owned().await.ok();
                (listener.accept().await, slot)
            } => accepted,
        };
        let (stream, peer) = match accepted.0 {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (slot, handler, stop, abort) =
            (accepted.1, handler.clone(), stop.clone(), abort.clone());
        connections.spawn(async move {
            handler.metrics.connections().inc();
            tokio::select! {
                () = abort.cancelled() => {}
                () = serve_one(stream, peer, handler.clone(), limits, stop) => {}
            }
            handler.metrics.connections().dec();
            drop(slot);
        });
    }
    drop(listener);
    connections.close();
    handler.tunnels.close();
    let all = async {
        connections.wait().await;
        handler.tunnels.wait().await;
    };
    if tokio::time::timeout(limits.drain, all).await.is_err() {
        tracing::warn!(connections = connections.len(), "closing open connections");
        abort.cancel();
        connections.wait().await;
    }
}

async fn serve_one(
    mut stream: TcpStream,
    peer: SocketAddr,
    handler: Arc<Handler>,
    limits: ConnectionLimits,
    stop: CancellationToken,
) {
    set_options(&stream);
    let mut first = Vec::with_capacity(PREFACE.len());
    let began = tokio::select! {
        () = stop.cancelled() => return,
        began = tokio::time::timeout(limits.head_timeout, speaks_http2(&mut stream, &mut first)) => began,
    };
    let Ok(Ok(is_http2)) = began else {
        return;
    };
    let (read, write) = stream.into_split();
    let stream = tokio::io::join(Cursor::new(first).chain(read), write);
    if is_http2 {
        http2(stream, peer, handler, limits, stop).await;
    } else {
        http1(stream, peer, handler, limits, stop).await;
    }
}

/// Without these options it is only slower, or keeps the connection of a machine that is gone.
fn set_options(stream: &TcpStream) {
    let _slower = stream.set_nodelay(true);
    let _kept = sockopt::set_socket_keepalive(stream, true)
        .and_then(|()| sockopt::set_tcp_keepidle(stream, KEEP_ALIVE));
}

/// Reads until it is clear which version of HTTP the client speaks.
async fn speaks_http2(stream: &mut TcpStream, first: &mut Vec<u8>) -> std::io::Result<bool> {
    while first.len() < PREFACE.len() && PREFACE.starts_with(first) {
        let mut left = stream.take((PREFACE.len() - first.len()) as u64);
        if left.read_buf(first).await? == 0 {
            return Ok(false);
        }
    }
    Ok(PREFACE == first)
}

async fn http1(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: SocketAddr,
    handler: Arc<Handler>,
    limits: ConnectionLimits,
    stop: CancellationToken,
) {
    let service = service_fn(move |request| handler.clone().answer(peer, request, None));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(BUFFER_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection failed");
    }
}

async fn http2(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: SocketAddr,
    handler: Arc<Handler>,
    limits: ConnectionLimits,
    stop: CancellationToken,
) {
    let activity = Arc::new(Activity::default());
    let counted = activity.clone();
    let service = service_fn(move |request| {
        counted.began.fetch_add(1, Ordering::Relaxed);
        handler.clone().answer(peer, request, Some(counted.clone()))
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADERS_MAX_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_WINDOW as usize)
        .keep_alive_interval(PING_TIMEOUT)
        .keep_alive_timeout(PING_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = idle(&activity, limits.head_timeout) => {}
            }
        } => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection failed");
    }
}

/// The requests of an HTTP/2 connection, whose idle time hyper does not limit. Each running one has a handle.
#[derive(Default)]
pub(super) struct Activity {
    began: AtomicUsize,
}

/// Returns when no request began or ran for this long.
async fn idle(activity: &Arc<Activity>, limit: Duration) {
    let mut before = None;
    loop {
        tokio::time::sleep(limit).await;
        let began = activity.began.load(Ordering::Relaxed);
        // One handle is the connection's, and one its service's.
        if before == Some(began) && Arc::strong_count(activity) <= 2 {
            return;
        }
        before = Some(began);
    }
}
