//! TLS on TCP connections, with the certificate that is current when a connection opens.
//!
//! It authenticates only the server: all answers are public. Sessions are never resumed, so each
//! connection uses the current certificate.

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

/// A TCP listener whose connections start with a TLS handshake.
pub struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl TlsListener {
    /// Creates a listener with TLS 1.2 and 1.3, HTTP/1.1 and the certificates of `certificates`.
    ///
    /// # Errors
    /// If the provider does not support the protocol versions, which it does.
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
