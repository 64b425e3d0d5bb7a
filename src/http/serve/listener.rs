//! What can be served on: where connections come from, and what one is.
//!
//! A connection is accepted in one step and opened in another. What takes time, such as a
//! handshake, is in the second, which each connection does for itself: so nobody keeps others from
//! being accepted.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// Where connections come from.
pub trait Listener: Send + Sync + 'static {
    /// What is accepted.
    type Raw: Send + 'static;
    /// What is served.
    type Stream: Transport;

    /// The next connection. May be dropped at any time, and no connection is lost by that.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Raw>> + Send;

    /// Makes it ready to be served. The time for it is bounded by who calls.
    fn open(&self, raw: Self::Raw) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// A connection on a socket of the kernel's.
pub trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The socket under it.
    fn socket(&self) -> BorrowedFd<'_>;
}

impl Listener for TcpListener {
    type Raw = TcpStream;
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _peer) = TcpListener::accept(self).await?;
        Ok(stream)
    }

    /// Answers are small: held back for more to come they would only be late.
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
