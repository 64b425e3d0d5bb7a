//! TLS from the clients' side: rustls is the client here, and Go's TLS in `e2e`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use leasehold::http::serve::{Bounds, TlsListener, serve};
use leasehold::store::certificates::TlsFiles;
use leasehold::webhook::certs::{Pair, ServedCertificate, issue};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

const NAME: &str = "leasehold-webhook.leasehold-system.svc";
const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

fn pair() -> TlsFiles {
    // The validity began long ago and ends far in the future, because the clients use the real
    // time.
    let life = Duration::from_secs(100 * 365 * 86_400);
    issue(&[NAME.to_owned()], life, 1_700_000_000).unwrap()
}

struct Server {
    address: SocketAddr,
    served: ServedCertificate,
    stop: CancellationToken,
    ended: tokio::task::JoinHandle<()>,
}

async fn server() -> Server {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = tcp.local_addr().unwrap();
    let served = ServedCertificate::default();
    let listener = TlsListener::new(tcp, Arc::new(served.clone())).unwrap();
    let router = Router::new()
        .route("/", get(async || "answer"))
        .route("/large", get(async || "x".repeat(20_000)));
    let stop = CancellationToken::new();
    let ended = tokio::spawn(serve(listener, router, Bounds::WEBHOOK, stop.clone()));
    Server {
        address,
        served,
        stop,
        ended,
    }
}

impl Server {
    fn serve(&self, files: &TlsFiles) {
        self.served.serve(Pair::read(files).unwrap());
    }

    async fn connect(
        &self,
        trusted: &TlsFiles,
        versions: &[&'static SupportedProtocolVersion],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.address).await?;
        Self::handshake(tcp, trusted, versions).await
    }

    async fn handshake(
        tcp: TcpStream,
        trusted: &TlsFiles,
        versions: &[&'static SupportedProtocolVersion],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(&trusted.authority).unwrap();
        roots.add(authority).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Like Go's client for webhooks.
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let name = ServerName::try_from(NAME).unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await
    }
}

async fn ask(stream: &mut TlsStream<TcpStream>) -> String {
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"answer") {
        let read = stream.read_buf(&mut answer).await.unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer));
    }
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn both_versions_are_spoken_and_http_1_in_them() {
    let (server, files) = (server().await, pair());
    server.serve(&files);
    for versions in [[&TLS13], [&TLS12]] {
        let mut stream = server.connect(&files, &versions).await.unwrap();
        let (_, session) = stream.get_ref();
        assert_eq!(session.protocol_version(), Some(versions[0].version));
        assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert!(ask(&mut stream).await.starts_with("HTTP/1.1 200"));
    }
}

#[tokio::test]
async fn new_certificate_applies_to_new_connections_only() {
    let (server, old, new) = (server().await, pair(), pair());
    assert!(server.connect(&old, BOTH).await.is_err(), "there is none");
    server.serve(&old);
    let mut open = server.connect(&old, BOTH).await.unwrap();
    ask(&mut open).await;
    for round in 0..20 {
        let (now, other) = if round % 2 == 0 {
            (&new, &old)
        } else {
            (&old, &new)
        };
        server.serve(now);
        ask(&mut open).await;
        let mut fresh = server.connect(now, BOTH).await.unwrap();
        ask(&mut fresh).await;
        assert!(server.connect(other, BOTH).await.is_err(), "round {round}");
    }
}

#[tokio::test]
async fn silent_clients_block_no_other_client() {
    let (server, files) = (server().await, pair());
    server.serve(&files);
    let mut silent = Vec::new();
    for _ in 0..Bounds::WEBHOOK.connections + 10 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    // Plain HTTP is not a handshake.
    let mut plain = TcpStream::connect(server.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let answered = tokio::time::timeout(Duration::from_secs(5), async {
        ask(&mut server.connect(&files, BOTH).await.unwrap()).await
    });
    answered
        .await
        .expect("a client that sends gets a connection");
}

/// Returns a client that sends requests until the server stops reading them, and that reads no
/// answer.
async fn unread(server: &Server, files: &TlsFiles) -> TlsStream<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2_048).unwrap();
    let tcp = socket.connect(server.address).await.unwrap();
    let mut stream = Server::handshake(tcp, files, BOTH).await.unwrap();
    let requests = b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n".repeat(100);
    let silence = Duration::from_secs(1);
    while let Ok(Ok(())) = tokio::time::timeout(silence, stream.write_all(&requests)).await {}
    stream
}

#[tokio::test]
async fn unread_or_stalled_connections_block_no_other_client() {
    let (server, files) = (server().await, pair());
    server.serve(&files);
    let half = Bounds::WEBHOOK.connections / 2;
    let _unread = futures::future::join_all((0..half).map(|_| unread(&server, &files))).await;
    let mut stalled = Vec::new();
    for _ in 0..half {
        let mut tcp = TcpStream::connect(server.address).await.unwrap();
        // The beginning of a record with a ClientHello.
        tcp.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
        stalled.push(tcp);
    }
    for _ in 0..10 {
        let answered = tokio::time::timeout(Duration::from_secs(60), async {
            ask(&mut server.connect(&files, BOTH).await.unwrap()).await
        });
        answered.await.expect("other clients must be answered");
    }
}

#[tokio::test]
async fn a_stop_ends_idle_connections() {
    let (server, files) = (server().await, pair());
    server.serve(&files);
    let mut open = server.connect(&files, BOTH).await.unwrap();
    ask(&mut open).await;
    server.stop.cancel();
    let mut rest = Vec::new();
    open.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"", "closed with a TLS close_notify");
    server.ended.await.unwrap();
}
