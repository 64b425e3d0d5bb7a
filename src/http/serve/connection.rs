//! The state of one connection: whether it is active, and whether its client reads.
//!
//! A client that sends requests and reads no response, or that sends half a request, does not count
//! as active: its connection may be closed for another client (`slots`). An event stream is exempt:
//! its client may be slow, and the agent limits the number of streams.
//!
//! hyper would buffer many parts of a response before the client reads one. For an event stream
//! that is wrong twice: memory grows with a slow reader, and it reads old events. Here a stream
//! provides its next part only when the previous one was handed to the kernel, whose buffer is
//! small for such a connection.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use futures::stream::{Stream, StreamExt as _};
use futures::task::AtomicWaker;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The state of a connection. A clone is another handle to the same state.
#[derive(Clone)]
pub(in crate::http) struct Connection(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// A counter of the listener that orders activities.
    order: Arc<AtomicU64>,
    /// Notified when the connection may be closed for another one.
    may_close: Arc<Notify>,
    /// Whether all written data was handed to the kernel.
    is_flushed: AtomicBool,
    /// The task that waits for the flush.
    writer: AtomicWaker,
    /// Whether it has an event stream.
    is_stream: AtomicBool,
    closed: CancellationToken,
}

#[derive(Clone, Copy)]
struct State {
    activity: Activity,
    /// Since when the kernel accepts no more data for the client.
    unread_since: Option<u64>,
}

/// The activity of a connection. If all slots are taken, the smallest one is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    /// Its client has not read since then.
    Unread(u64),
    /// It has not sent a complete request, since it was accepted or since the head of one without
    /// its body.
    Fresh(u64),
    /// It has sent requests, and its last response was handed to the kernel then.
    Idle(u64),
    /// A request is being processed.
    Busy,
    /// The response is complete, and being sent.
    Answered,
}

impl Connection {
    /// Creates the state of an accepted connection.
    pub(super) fn new(order: &Arc<AtomicU64>, may_close: &Arc<Notify>) -> Self {
        let activity = Activity::Fresh(order.fetch_add(1, Ordering::Relaxed));
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                activity,
                unread_since: None,
            }),
            order: order.clone(),
            may_close: may_close.clone(),
            is_flushed: AtomicBool::new(true),
            writer: AtomicWaker::new(),
            is_stream: AtomicBool::new(false),
            closed: CancellationToken::new(),
        }))
    }

    /// Returns the current activity.
    pub(super) fn activity(&self) -> Activity {
        let State {
            activity,
            unread_since,
        } = *self.lock();
        match unread_since {
            Some(since) if !self.is_streaming(activity) => Activity::Unread(since),
            _ => activity,
        }
    }

    /// Records the head of a request. `is_whole` says whether it has no body.
    pub(super) fn begin(&self, is_whole: bool) {
        self.0.is_stream.store(false, Ordering::Release);
        if is_whole {
            return self.set_busy();
        }
        self.lock().activity = Activity::Fresh(self.next());
        self.0.may_close.notify_waiters();
    }

    /// Records that the request is complete, or that its body is not needed.
    pub(super) fn set_busy(&self) {
        self.lock().activity = Activity::Busy;
    }

    /// Records that the response is complete.
    pub(super) fn set_answered(&self) {
        self.lock().activity = Activity::Answered;
    }

    /// Closes the connection if it is not active.
    pub(super) fn close_if_idle(&self) -> bool {
        let is_idle = matches!(
            self.activity(),
            Activity::Unread(_) | Activity::Fresh(_) | Activity::Idle(_)
        );
        if is_idle {
            self.0.closed.cancel();
        }
        is_idle
    }

    /// Waits until the connection has to be closed.
    pub(super) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> u64 {
        self.0.order.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns whether its last response is an event stream.
    pub(super) fn is_stream(&self) -> bool {
        self.0.is_stream.load(Ordering::Acquire)
    }

    fn is_streaming(&self, activity: Activity) -> bool {
        activity == Activity::Busy && self.is_stream()
    }

    /// Records that all written data was handed to the kernel.
    pub(super) fn set_flushed(&self) {
        if !self.0.is_flushed.swap(true, Ordering::AcqRel) {
            self.0.writer.wake();
        }
        let mut state = self.lock();
        state.unread_since = None;
        if state.activity == Activity::Answered {
            state.activity = Activity::Idle(self.next());
            self.0.may_close.notify_waiters();
        }
    }

    /// Records that the kernel accepts no more data. Returns whether the client must read: that of
    /// a stream need not.
    pub(super) fn set_unread(&self) -> bool {
        let mut state = self.lock();
        if state.unread_since.is_none() {
            state.unread_since = Some(self.next());
            self.0.may_close.notify_waiters();
        }
        !self.is_streaming(state.activity)
    }

    /// Returns whether the kernel accepts no more data.
    pub(super) fn is_unread(&self) -> bool {
        self.lock().unread_since.is_some()
    }

    /// Ready when all earlier data was handed to the kernel.
    fn poll_flushed(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.writer.register(cx.waker());
        if self.0.is_flushed.load(Ordering::Acquire) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// Returns the parts of a stream, each requested only when the connection has taken the previous
/// one.
pub(in crate::http) fn paced(
    parts: impl Stream<Item = String> + Send + 'static,
    connection: Option<Connection>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let mut parts = Box::pin(parts);
    if let Some(connection) = &connection {
        connection.0.is_stream.store(true, Ordering::Release);
    }
    futures::stream::poll_fn(move |cx| {
        if let Some(connection) = &connection {
            ready!(connection.poll_flushed(cx));
        }
        let part = ready!(parts.poll_next_unpin(cx));
        if let Some(connection) = &connection {
            connection.0.is_flushed.store(false, Ordering::Release);
        }
        Poll::Ready(part.map(|part| Ok(Bytes::from(part))))
    })
}

/// The body of a request or response, whose end is recorded in the connection.
pub(super) struct TrackedBody<B> {
    body: B,
    connection: Connection,
    end: fn(&Connection),
}

impl<B> TrackedBody<B> {
    pub(super) const fn new(body: B, connection: Connection, end: fn(&Connection)) -> Self {
        Self {
            body,
            connection,
            end,
        }
    }
}

impl<B> Drop for TrackedBody<B> {
    fn drop(&mut self) {
        (self.end)(&self.connection);
    }
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use axum::Extension;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

    use super::super::{Bounds, Listener, Transport, serve};
    use super::*;

    /// hyper alone would buffer sixteen of these.
    const PART_BYTES: usize = 4_000;

    /// Serves an endless stream of parts. Returns the number of requested parts.
    fn serve_parts(listener: impl Listener) -> Arc<AtomicUsize> {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let handler = move |Extension(connection): Extension<Connection>| async move {
            let parts = futures::stream::repeat_with(move || {
                let number = count.fetch_add(1, Ordering::SeqCst);
                format!("{number:0PART_BYTES$}")
            });
            axum::body::Body::from_stream(paced(parts, Some(connection)))
        };
        let router = axum::Router::new().route("/", get(handler));
        let stop = CancellationToken::new();
        // A slow reader takes the only slot, while other clients request one.
        let bounds = Bounds {
            connections: 1,
            ..Bounds::API
        };
        tokio::spawn(serve(listener, router, bounds, stop));
        asked
    }

    #[tokio::test]
    async fn stalled_tcp_reader_is_sent_no_more_than_socket_buffers_hold() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = serve_parts(listener);
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let client = socket.connect(address).await.unwrap();
        let other = async || TcpStream::connect(address).await.unwrap();
        stand_still(client, other, asked).await;
    }

    #[tokio::test]
    async fn stalled_unix_reader_is_sent_no_more_than_socket_buffers_hold() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let asked = serve_parts(UnixListener::bind(&path).unwrap());
        let connect = async || UnixStream::connect(&path).await.unwrap();
        stand_still(connect().await, connect, asked).await;
    }

    async fn stand_still<T: Transport>(
        mut client: T,
        other: impl AsyncFn() -> T,
        asked: Arc<AtomicUsize>,
    ) {
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
        client.write_all(request).await.unwrap();
        // The server runs between any two reads of the counter. One unchanged value may mean only
        // that the process was off the CPU; several in a row do not.
        let (mut before, mut still) = (0, 0);
        while still < 10 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = asked.load(Ordering::SeqCst);
            if now != before || now == 0 {
                still = 0;
            }
            still += 1;
            before = now;
        }
        // Two small buffers of the kernel, and one part.
        assert!(before <= 8, "{before} parts of {PART_BYTES} bytes");
        // It is closed neither for another client nor after a while.
        let _other = other().await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(60)).await;
        tokio::time::resume();
        // It continues where it was.
        let mut read = vec![0; 100 * PART_BYTES];
        client.read_exact(&mut read).await.unwrap();
        assert!(asked.load(Ordering::SeqCst) > 90);
    }
}
