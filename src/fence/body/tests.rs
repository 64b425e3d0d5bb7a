//! What hyper holds of a body still keeps newer tokens waiting.

use std::convert::Infallible;
use std::future::pending;

use futures::channel::mpsc;
use futures::{FutureExt as _, StreamExt as _};
use http::{Request, Response, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncWriteExt as _;

use super::super::gate::{Gate, Limits, Recorded};
use super::super::memory::InMemory;
use super::super::metrics::Metrics;
use super::*;
use crate::clock::SystemClock;
use crate::protocol::ids::Resource;
use crate::protocol::token::Token;

const HTTP1: &str = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";

/// The client's preface, no settings, the head of a POST (RFC 7541, appendix A) and data.
const HTTP2: &[&[u8]] = &[
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    &[0, 0, 0, 4, 0, 0, 0, 0, 0],
    &[0, 0, 6, 1, 4, 0, 0, 0, 1, 0x83, 0x86, 0x84, 0x41, 1, b'a'],
    &[0, 0, 5, 0, 0, 0, 0, 0, 1],
    b"hello",
];
/// `RST_STREAM` with `NO_ERROR`.
const RESET: &[u8] = &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 0];
const END: &[u8] = &[0, 0, 0, 0, 1, 0, 0, 0, 1];

/// Returns the body of a request as hyper receives it.
async fn received(bytes: &[u8], version: Version) -> Received {
    let (mut client, server) = tokio::io::duplex(1024);
    client.write_all(bytes).await.unwrap();
    let (bodies, mut received) = mpsc::unbounded();
    tokio::spawn(async move {
        let service = service_fn(move |request: Request<Incoming>| {
            bodies.unbounded_send(request.into_body()).unwrap();
            pending::<Result<Response<Empty<Bytes>>, Infallible>>()
        });
        let server = TokioIo::new(server);
        if version == Version::HTTP_2 {
            let _ended = http2::Builder::new(TokioExecutor::new())
                .serve_connection(server, service)
                .await;
        } else {
            let _ended = http1::Builder::new()
                .serve_connection(server, service)
                .await;
        }
        drop(client);
    });
    Received::new(received.next().await.unwrap(), version)
}

#[tokio::test]
async fn body_whose_stream_is_reset_without_error_is_not_whole() {
    for (end, is_whole) in [(RESET, false), (END, true)] {
        let bytes = [HTTP2.concat(), end.to_vec()].concat();
        let body = received(&bytes, Version::HTTP_2).await.collect().await;
        assert_eq!(body.is_ok(), is_whole, "{body:?}");
    }
}

/// hyper drops the body with its last part, and may send that part later.
#[tokio::test]
async fn newer_token_waits_for_a_part_that_is_not_sent() {
    let limits = Limits {
        older_requests: Duration::ZERO,
        settle: Duration::ZERO,
        resources: 1,
    };
    let (clock, metrics) = (Arc::new(SystemClock), Arc::new(Metrics::new().unwrap()));
    let (none, record) = (Recorded::default(), Arc::new(InMemory));
    let gate = Gate::new(none, record, None, None, clock.clone(), limits, metrics);
    let resource = Resource::parse("r").unwrap();
    let older = gate.pass(&resource, Token::from_raw(5)).await.unwrap();
    let progress = Arc::new(Progress::new(clock));
    let mut body = RequestBody::new(
        received(HTTP1.as_bytes(), Version::HTTP_11).await,
        u64::MAX,
        progress,
        Some(Arc::new(older)),
        None,
        false,
    );
    let part = body
        .frame()
        .await
        .unwrap()
        .unwrap()
        .into_data()
        .ok()
        .unwrap();
    drop(body);
    let mut newer = Box::pin(gate.pass(&resource, Token::from_raw(7)));
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(newer.as_mut().now_or_never().is_none());
    }
    assert_eq!(part.chunk(), b"hello");
    drop(part);
    newer.await.unwrap();
}
