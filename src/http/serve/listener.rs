//! Listeners and their connections.
//!
//! A connection is accepted in one step and opened in another. Slow work such as a handshake is
//! part of the second step, which each connection performs for itself. So no connection delays the
//! others.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A source of connections.
pub trait Listener: Send + Sync + 'static {
    /// An accepted connection.
    type Raw: Send + 'static;
    /// An open connection.
    type Stream: Transport;

    /// Accepts the next connection. Cancel-safe: no connection is lost.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Raw>> + Send;

    /// Opens a connection. The caller sets a timeout.
    fn open(&self, raw: Self::Raw) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// A connection on a kernel socket.
pub trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Returns the underlying socket.
    fn socket(&self) -> BorrowedFd<'_>;
}

impl Listener for TcpListener {
    type Raw = TcpStream;
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _peer) = TcpListener::accept(self).await?;
        Ok(stream)
    }

    /// Responses are small, and must not wait for more data.
    async fn open(&self, stream: TcpStream) -> io::Result<TcpStream> {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "setting TCP_NODELAY failed");
        }
        Ok(stream)
    }
}

impl Listener for UnixListener {
    type Raw = UnixStream;
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _peer) = UnixListener::accept(self).await?;
        Ok(stream)
    }

    async fn open(&self, stream: UnixStream) -> io::Result<UnixStream> {
        Ok(stream)
    }
}

impl Transport for TcpStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

impl Transport for UnixStream {
    fn socket(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}
