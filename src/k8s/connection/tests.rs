//! Tests how many connections calls open, counted by the test's own server, over TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::{Client, Config};
use rustls::pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio::sync::Barrier;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::k8s::connect;

const H2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";
/// How long to wait for a server that never answers.
const SOON: Duration = Duration::from_millis(300);
/// Long enough for the answer of a slow machine.
const LONG: Duration = Duration::from_secs(60);

/// A server that speaks one version of HTTP.
struct Server {
    address: SocketAddr,
    authority: Vec<u8>,
    accepted: Arc<AtomicUsize>,
}

impl Server {
    /// Does not answer `/silence`. Answers other requests as soon as `together` of them arrived.
    async fn start(protocol: &'static [u8], together: usize) -> Self {
        Self::start_after(0, protocol, together).await
    }

    /// The same, but the first `hanging` connections never get beyond TCP.
    async fn start_after(hanging: usize, protocol: &'static [u8], together: usize) -> Self {
        let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let certificate = key.cert.der().clone();
        let private = PrivateKeyDer::try_from(key.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], private)
            .unwrap();
        tls.alpn_protocols = vec![protocol.to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            authority: certificate.to_vec(),
            accepted: Arc::default(),
        };
        let accepted = Arc::clone(&server.accepted);
        let (tls, all) = (TlsAcceptor::from(Arc::new(tls)), Barrier::new(together));
        let all = Arc::new(all);
        tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((tcp, _)) = listener.accept().await {
                if accepted.fetch_add(1, Ordering::SeqCst) < hanging {
                    held.push(tcp);
                    continue;
                }
                tokio::spawn(serve(tls.clone(), tcp, Arc::clone(&all)));
            }
        });
        server
    }

    fn client(&self) -> Client {
        let mut config = Config::new(format!("https://{}", self.address).parse().unwrap());
        config.root_cert = Some(vec![self.authority.clone()]);
        connect(&config).unwrap()
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

async fn serve(tls: TlsAcceptor, tcp: tokio::net::TcpStream, all: Arc<Barrier>) {
    let stream = tls.accept(tcp).await.unwrap();
    let is_h2 = stream.get_ref().1.alpn_protocol() == Some(H2);
    let answer = service_fn(move |request: Request<Incoming>| {
        let all = Arc::clone(&all);
        async move {
            if request.uri().path() == "/silence" {
                std::future::pending::<()>().await;
            }
            all.wait().await;
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"{}"))))
        }
    });
    let io = TokioIo::new(stream);
    // The client decides how the connection ends.
    if is_h2 {
        let connection = http2::Builder::new(TokioExecutor::new());
        drop(connection.serve_connection(io, answer).await);
    } else {
        drop(http1::Builder::new().serve_connection(io, answer).await);
    }
}

async fn get(client: &Client, path: &str) -> String {
    let request = Request::get(path).body(Vec::new()).unwrap();
    let answer = tokio::time::timeout(LONG, client.request_text(request)).await;
    answer.expect("no answer").unwrap()
}

#[tokio::test]
async fn concurrent_first_calls_open_one_connection() {
    let server = Server::start(H2, 8).await;
    let client = server.client();
    let answers = join_all((0..8).map(|_| get(&client, "/"))).await;
    assert_eq!(answers, ["{}"; 8]);
    assert_eq!(server.accepted(), 1);
}

#[tokio::test]
async fn abandoned_call_takes_its_connection_out_of_use() {
    let server = Server::start(H2, 1).await;
    let client = server.client();
    get(&client, "/").await;
    let silence = tokio::time::timeout(SOON, get(&client, "/silence")).await;
    assert!(silence.is_err());
    get(&client, "/").await;
    assert_eq!(server.accepted(), 2);
    get(&client, "/").await;
    assert_eq!(server.accepted(), 2, "the new connection stays in use");
}

#[tokio::test]
async fn server_without_http_2_gets_a_connection_for_each_call() {
    let server = Server::start(HTTP_1, 2).await;
    let client = server.client();
    let answers = join_all((0..2).map(|_| get(&client, "/"))).await;
    assert_eq!(answers, ["{}"; 2]);
    assert_eq!(server.accepted(), 2);
}

#[tokio::test]
async fn unpolled_call_does_not_block_connections_of_other_calls() {
    let server = Server::start_after(1, H2, 1).await;
    let client = server.client();
    let mut first = Box::pin(client.request_text(Request::get("/").body(Vec::new()).unwrap()));
    let polled = tokio::time::timeout(SOON, &mut first).await;
    assert!(polled.is_err(), "its connection does not open");
    get(&client, "/").await;
    assert_eq!(server.accepted(), 2);
    drop(first);
}

#[tokio::test]
async fn abandoned_call_ends_no_other_on_its_connection() {
    let server = Server::start(H2, 2).await;
    let client = server.client();
    // Opens the connection first, however long that takes.
    join_all((0..2).map(|_| get(&client, "/"))).await;
    let (first, ()) = tokio::join!(get(&client, "/"), async {
        let silence = tokio::time::timeout(SOON, get(&client, "/silence")).await;
        assert!(silence.is_err());
        get(&client, "/").await;
    });
    assert_eq!(first, "{}");
    assert_eq!(server.accepted(), 2);
}
