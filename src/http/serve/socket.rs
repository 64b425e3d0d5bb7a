//! The socket of a connection: what the kernel may hold for it, and for how long a client may read
//! nothing.
//!
//! Whether bytes reach the client it does not know; only whether the kernel has room for more of them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::connection::Connection;
use super::listener::Transport;

/// What the kernel may hold for a stream of events that its client does not read. Linux doubles it,
/// for what it needs itself.
const STREAM_SEND_BUFFER_BYTES: usize = 4 * 1024;

/// What the kernel may hold for any other client that does not read. Every answer but a long list
/// of locks fits, so a client that reads its answers before it sends the next request is never
/// found waiting here.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// How long a client may read nothing of what it was sent.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A socket that notes when all that was written to it is with the kernel, and when no more is taken.
pub(super) struct Noting<T: Transport> {
    stream: T,
    connection: Connection,
    has_small_buffer: bool,
    /// Runs while the kernel takes no more.
    until_closed: Option<Pin<Box<Sleep>>>,
}

impl<T: Transport> Noting<T> {
    pub(super) fn new(stream: T, connection: Connection) -> Self {
        let noting = Self {
            stream,
            connection,
            has_small_buffer: false,
            until_closed: None,
        };
        noting.bound_buffer(SEND_BUFFER_BYTES);
        noting
    }

    fn bound_buffer(&self, bytes: usize) {
        let socket = self.stream.socket();
        if let Err(error) = sockopt::set_socket_send_buffer_size(socket, bytes) {
            tracing::debug!(%error, "limiting the send buffer failed");
        }
    }

    /// hyper calls it before each of its writes, so a stream's own bytes meet the small buffer.
    fn note_stream(&mut self) {
        if self.has_small_buffer || !self.connection.is_stream() {
            return;
        }
        self.has_small_buffer = true;
        self.bound_buffer(STREAM_SEND_BUFFER_BYTES);
    }

    /// Fails a write that makes no progress for too long.
    fn bounded<R>(
        &mut self,
        written: Poll<io::Result<R>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<R>> {
        if written.is_ready() || !self.connection.note_unread() {
            self.until_closed = None;
            return written;
        }
        let until_closed = self
            .until_closed
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(UNREAD_TIMEOUT)));
        ready!(until_closed.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: Transport> Drop for Noting<T> {
    /// Without it the kernel would keep, for minutes, what the client does not read.
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
        self.note_stream();
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bounded(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.note_stream();
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.bounded(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        ready!(self.bounded(flushed, cx))?;
        self.connection.note_flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut_down = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bounded(shut_down, cx)
    }
}
