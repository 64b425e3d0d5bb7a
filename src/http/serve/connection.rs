//! One connection: whether it is at work, and whether it has taken what it was given.
//!
//! hyper would take many parts of an answer into its buffer before the client reads one. For a
//! stream of events that is wrong twice: memory grows with a reader that stands still, and what it
//! reads later is old. Here a stream gives its next part only when the one before was handed to the
//! kernel, whose own buffer is small for such a connection.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::Bytes;
use futures::stream::{Stream, StreamExt as _};
use futures::task::AtomicWaker;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::listener::Transport;

/// What the kernel may hold for a stream of events that its client does not read. Linux doubles it,
/// for what it needs itself.
const STREAM_SEND_BUFFER_BYTES: usize = 4 * 1024;

/// What is known of a connection. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(in crate::http) struct Connection(Arc<Shared>);

struct Shared {
    activity: Mutex<Activity>,
    /// Counts what the connections of a listener do; the order is all that matters.
    order: Arc<AtomicU64>,
    /// Told when it is idle again.
    went_idle: Arc<Notify>,
    /// Whether everything that it was given is with the kernel.
    is_flushed: AtomicBool,
    /// Who waits for that.
    writer: AtomicWaker,
    /// Whether it has a stream of events.
    is_stream: AtomicBool,
    closed: CancellationToken,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Activity {
    /// It never sent a request, since it came.
    Fresh(u64),
    /// It has sent requests, and its last answer was taken then.
    Idle(u64),
    /// A request is being answered.
    Busy,
    /// The answer is made, and on its way.
    Answered,
}

impl Connection {
    /// A connection that was just accepted.
    pub(super) fn new(order: &Arc<AtomicU64>, went_idle: &Arc<Notify>) -> Self {
        Self(Arc::new(Shared {
            activity: Mutex::new(Activity::Fresh(order.fetch_add(1, Ordering::Relaxed))),
            order: order.clone(),
            went_idle: went_idle.clone(),
            is_flushed: AtomicBool::new(true),
            writer: AtomicWaker::new(),
            is_stream: AtomicBool::new(false),
            closed: CancellationToken::new(),
        }))
    }

    /// What it does now.
    pub(super) fn activity(&self) -> Activity {
        *self.lock()
    }

    /// A request has come.
    pub(super) fn begin(&self) {
        *self.lock() = Activity::Busy;
    }

    /// Closes it, if it is not at work.
    pub(super) fn close_if_idle(&self) -> bool {
        let is_idle = matches!(self.activity(), Activity::Fresh(_) | Activity::Idle(_));
        if is_idle {
            self.0.closed.cancel();
        }
        is_idle
    }

    /// Waits until it is to be closed.
    pub(super) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }

    fn lock(&self) -> MutexGuard<'_, Activity> {
        self.0
            .activity
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn note_flushed(&self) {
        if !self.0.is_flushed.swap(true, Ordering::AcqRel) {
            self.0.writer.wake();
        }
        let mut activity = self.lock();
        if *activity == Activity::Answered {
            *activity = Activity::Idle(self.0.order.fetch_add(1, Ordering::Relaxed));
            self.0.went_idle.notify_waiters();
        }
    }

    /// Ready when all that it was given before is with the kernel.
    fn poll_taken(&self, cx: &Context<'_>) -> Poll<()> {
        self.0.writer.register(cx.waker());
        if self.0.is_flushed.load(Ordering::Acquire) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// The parts of a stream, each asked for when the connection has taken the one before.
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
            ready!(connection.poll_taken(cx));
        }
        let part = ready!(parts.poll_next_unpin(cx));
        if let Some(connection) = &connection {
            connection.0.is_flushed.store(false, Ordering::Release);
        }
        Poll::Ready(part.map(|part| Ok(Bytes::from(part))))
    })
}

/// An answer's body, whose end is noted.
pub(super) struct Answer<B> {
    body: B,
    connection: Connection,
}

impl<B> Answer<B> {
    pub(super) const fn new(body: B, connection: Connection) -> Self {
        Self { body, connection }
    }
}

impl<B> Drop for Answer<B> {
    fn drop(&mut self) {
        *self.connection.lock() = Activity::Answered;
    }
}

impl<B: Body + Unpin> Body for Answer<B> {
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

/// A socket that notes when all that was written to it is with the kernel.
pub(super) struct Noting<T> {
    stream: T,
    connection: Connection,
    has_small_buffer: bool,
}

impl<T: Transport> Noting<T> {
    pub(super) const fn new(stream: T, connection: Connection) -> Self {
        Self {
            stream,
            connection,
            has_small_buffer: false,
        }
    }

    /// hyper calls it before each of its writes, so a stream's own bytes meet the small buffer.
    fn bound_buffer(&mut self) {
        if self.has_small_buffer || !self.connection.0.is_stream.load(Ordering::Acquire) {
            return;
        }
        self.has_small_buffer = true;
        let bounded = rustix::net::sockopt::set_socket_send_buffer_size(
            self.stream.socket(),
            STREAM_SEND_BUFFER_BYTES,
        );
        if let Err(error) = bounded {
            tracing::debug!(%error, "the send buffer of a stream could not be bounded");
        }
    }
}

impl<T: Transport> AsyncRead for Noting<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<T: Transport> AsyncWrite for Noting<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.bound_buffer();
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.bound_buffer();
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.connection.note_flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use axum::Extension;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};

    use super::super::{Bounds, Listener, serve};
    use super::*;

    /// Of these hyper alone would take sixteen.
    const PART_BYTES: usize = 4_000;

    /// Serves parts without an end; gives how many were asked for.
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
        tokio::spawn(serve(listener, router, Bounds::API, stop));
        asked
    }

    #[tokio::test]
    async fn a_reader_that_stands_still_is_given_no_more_than_the_kernel_takes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = serve_parts(listener);
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4_096).unwrap();
        let client = socket.connect(address).await.unwrap();
        stand_still(client, asked).await;
    }

    #[tokio::test]
    async fn so_is_one_on_a_unix_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let asked = serve_parts(UnixListener::bind(&path).unwrap());
        stand_still(UnixStream::connect(&path).await.unwrap(), asked).await;
    }

    async fn stand_still(mut client: impl Transport, asked: Arc<AtomicUsize>) {
        let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
        client.write_all(request).await.unwrap();
        // The server runs between any two looks. One look that saw nothing new might be late, by a
        // process that was off the CPU; several in a row are not.
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
        // It goes on where it stood.
        let mut read = vec![0; 100 * PART_BYTES];
        client.read_exact(&mut read).await.unwrap();
        assert!(asked.load(Ordering::SeqCst) > 90);
    }
}
