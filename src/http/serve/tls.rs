//! TLS on TCP connections, with whatever certificate there is when one opens.
//!
//! It authenticates the server alone: who asks is told nothing that is not everybody's. No session is
//! ever resumed, so that each connection is answered with the certificate of its own time.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::listener::{Listener, Transport};

/// A TCP listener whose connections begin with a handshake.
pub struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl TlsListener {
    /// Serves TLS 1.2 and 1.3 with the certificates that `certificates` gives, and HTTP/1.1 in it.
    ///
    /// # Errors
    /// When the cryptography cannot do what the protocol takes; it always can.
    pub fn new(
        tcp: TcpListener,
        certificates: Arc<dyn ResolvesServerCert>,
    ) -> Result<Self, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(certificates);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            tcp,
            acceptor: TlsAcceptor::from(Arc::new(config)),
        })
    }
}

impl Listener for TlsListener {
    type Raw = TcpStream;
    type Stream = TlsStream<TcpStream>;

    async fn accept(&self) -> io::Result<TcpStream> {
        Listener::accept(&self.tcp).await
    }

    async fn open(&self, stream: TcpStream) -> io::Result<Self::Stream> {
        let stream = Listener::open(&self.tcp, stream).await?;
        self.acceptor.accept(stream).await
    }
}

impl Transport for TlsStream<TcpStream> {
    fn socket(&self) -> BorrowedFd<'_> {
        self.get_ref().0.as_fd()
    }
}
