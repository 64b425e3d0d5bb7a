//! Clients that send requests and never read the answers, on every connection of a listener. Other
//! clients are served, and the flood's connections are closed after a limit.

use std::net::SocketAddr;
use std::time::Duration;

use leasehold::admin;
use leasehold::http::serve::{Bounds, serve};
use leasehold::http::{HttpOptions, router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Sidecar;

const MINUTE: Duration = Duration::from_secs(60);
/// A client counts as blocked if the server has read nothing from it for this long.
const SILENCE: Duration = Duration::from_secs(1);

/// Serves a router within bounds, until the returned guard is dropped.
async fn served(router: axum::Router, bounds: Bounds) -> (SocketAddr, DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(serve(listener, router, bounds, stop.clone()));
    (address, stop.drop_guard())
}

/// Opens connections that send this request repeatedly until the server stops reading.
async fn flood(address: SocketAddr, path: &str, connections: usize) -> Vec<TcpStream> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(100);
    let unread = (0..connections).map(async |_| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(2_048).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        // A write error means that the server has closed the connection.
        while let Ok(Ok(())) =
            tokio::time::timeout(SILENCE, stream.write_all(request.as_bytes())).await
        {}
        stream
    });
    futures::future::join_all(unread).await
}

/// Sends a probe on a new connection, as the kubelet does.
async fn probe(address: SocketAddr) {
    let client = reqwest::Client::builder().timeout(MINUTE).build().unwrap();
    let answer = client.get(format!("http://{address}/healthz")).send().await;
    let answer = answer.expect("a probe must be answered beside a flood");
    assert_eq!(answer.status(), 200);
}

#[tokio::test]
async fn admin_port_answers_probes_while_no_client_reads() {
    let sidecar = Sidecar::start().await;
    let bounds = Bounds::ADMIN;
    let (address, _stops) = served(admin::router(sidecar.agent.clone()), bounds).await;
    let flooding = flood(address, "/metrics", bounds.connections).await;
    for _ in 0..10 {
        probe(address).await;
    }
    drop(flooding);
    probe(address).await;
}

#[tokio::test]
async fn api_port_answers_probes_while_no_client_reads() {
    let sidecar = Sidecar::start().await;
    let bounds = Bounds {
        connections: 64,
        ..Bounds::API
    };
    let router = router(sidecar.agent.clone(), HttpOptions::default());
    let (address, _stops) = served(router, bounds).await;
    let flooding = flood(address, "/openapi.json", bounds.connections).await;
    for _ in 0..10 {
        probe(address).await;
    }
    drop(flooding);
    probe(address).await;
}

#[tokio::test]
async fn client_that_never_reads_is_closed_after_a_bound() {
    let answer = axum::routing::get(async || "x".repeat(20_000));
    let bounds = Bounds {
        head_timeout: 60 * MINUTE,
        ..Bounds::ADMIN
    };
    let (address, _stops) = served(axum::Router::new().route("/", answer), bounds).await;
    let mut flooding = flood(address, "/", 1).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    let closed = tokio::time::timeout(MINUTE, flooding[0].read_to_end(&mut Vec::new())).await;
    assert!(closed.is_ok(), "it is still open");
}

#[tokio::test]
async fn incomplete_requests_take_no_connection_from_others() {
    let post = axum::routing::post(async |body: String| body);
    let router = axum::Router::new()
        .route("/", post)
        .route("/healthz", axum::routing::get(async || "ok"));
    let bounds = Bounds {
        connections: 8,
        ..Bounds::WEBHOOK
    };
    let (address, _stops) = served(router, bounds).await;
    let mut halves = Vec::new();
    for _ in 0..bounds.connections {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let half = b"POST / HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
                     content-length: 10\r\n\r\n";
        stream.write_all(half).await.unwrap();
        // The server sends this when the handler reads the body.
        let mut told = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        stream.read_exact(&mut told).await.unwrap();
        halves.push(stream);
    }
    for _ in 0..10 {
        probe(address).await;
    }
}
