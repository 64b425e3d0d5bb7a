//! The socket of a connection: the limit of its send buffer, and the timeout for clients that do
//! not read.
//!
//! It does not know whether bytes reach the client, only whether the kernel accepts more.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connection::Connection;
use super::listener::Transport;

/// The send buffer of an event stream. Linux doubles it for its own needs.
const STREAM_SEND_BUFFER_BYTES: usize = 4 * 1024;

/// The send buffer of other connections. Every response but a long list of locks fits, so a client
/// that reads each response before its next request never times out here.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// How long a client may read nothing.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A socket that records when the kernel has taken all data, and when it accepts no more.
pub(super) struct TrackedSocket<T: Transport> {
    stream: T,
    connection: Connection,
    has_small_buffer: bool,
    /// Runs while the kernel accepts no more data.
    unread_timeout: Option<Pin<Box<Sleep>>>,
}

impl<T: Transport> TrackedSocket<T> {
    pub(super) fn new(stream: T, connection: Connection) -> Self {
        let tracked = Self {
            stream,
            connection,
            has_small_buffer: false,
            unread_timeout: None,
        };
        tracked.limit_buffer(SEND_BUFFER_BYTES);
        tracked
    }

    fn limit_buffer(&self, bytes: usize) {
        let socket = self.stream.socket();
        if let Err(error) = sockopt::set_socket_send_buffer_size(socket, bytes) {
            tracing::debug!(%error, "limiting the send buffer failed");
        }
    }

    /// hyper calls this before each write, so the data of a stream meets the small buffer.
    fn limit_stream_buffer(&mut self) {
        if self.has_small_buffer || !self.connection.is_stream() {
            return;
        }
        self.has_small_buffer = true;
        self.limit_buffer(STREAM_SEND_BUFFER_BYTES);
    }

    /// Fails a write that makes no progress for too long.
    fn fail_if_stalled<R>(
        &mut self,
        written: Poll<io::Result<R>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<R>> {
        if written.is_ready() || !self.connection.set_unread() {
            self.unread_timeout = None;
            return written;
        }
        let unread_timeout = self
            .unread_timeout
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(UNREAD_TIMEOUT)));
        ready!(unread_timeout.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Transport> Drop for TrackedSocket<T> {
    /// Without it the kernel would keep unread data for minutes.
    fn drop(&mut self) {
        if !self.connection.is_unread() {
            return;
        }
        let socket = self.stream.socket();
        if let Err(error) = sockopt::set_socket_linger(socket, Some(Duration::ZERO)) {
            tracing::debug!(%error, "discarding unread data failed");
        }
    }
}

impl<T: Transport> AsyncRead for TrackedSocket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<T: Transport> AsyncWrite for TrackedSocket<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.limit_stream_buffer();
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.fail_if_stalled(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.limit_stream_buffer();
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.fail_if_stalled(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        ready!(self.fail_if_stalled(flushed, cx))?;
        self.connection.set_flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut_down = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.fail_if_stalled(shut_down, cx)
    }
}
