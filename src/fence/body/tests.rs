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

/// A gate, and the body of a request that passed it.
async fn passed(bytes: &str, holds_head: bool) -> (Gate, RequestBody) {
    let limits = Limits {
        older_requests: Duration::ZERO,
        settle: Duration::ZERO,
        resources: 1,
    };
    let (clock, metrics) = (Arc::new(SystemClock), Arc::new(Metrics::new().unwrap()));
    let (none, record) = (Recorded::default(), Arc::new(InMemory));
    let gate = Gate::new(none, record, None, None, clock.clone(), limits, metrics);
    let pass = gate.pass(&resource(), Token::from_raw(5)).await.unwrap();
    let inner = received(bytes.as_bytes(), Version::HTTP_11).await;
    let (progress, pass) = (Arc::new(Progress::new(clock)), Some(Arc::new(pass)));
    let body = RequestBody::new(inner, u64::MAX, progress, pass, None, holds_head);
    (gate, body)
}

fn resource() -> Resource {
    Resource::parse("r").unwrap()
}

async fn assert_newer_waits_for(part: Part, gate: &Gate) {
    let resource = resource();
    let mut newer = Box::pin(gate.pass(&resource, Token::from_raw(7)));
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(newer.as_mut().now_or_never().is_none());
    }
    drop(part);
    newer.await.unwrap();
}

/// hyper drops the body with its last part, and may send that part later.
#[tokio::test]
async fn newer_token_waits_for_a_part_that_is_not_sent() {
    let (gate, mut body) = passed(HTTP1, false).await;
    let part = body.frame().await.unwrap().unwrap().into_data();
    let part = part.ok().unwrap();
    assert!(body.is_end_stream());
    drop(body);
    assert_eq!(part.chunk(), b"hello");
    assert_newer_waits_for(part, &gate).await;
}

/// HTTP/2 may send the head before it long after the request was cut.
#[tokio::test]
async fn body_without_data_has_an_empty_part() {
    const CHUNKED: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n";
    for (bytes, has_trailers) in [
        ("DELETE / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), false),
        (format!("{CHUNKED}\r\n"), false),
        (format!("{CHUNKED}x-sum: 1\r\n\r\n"), true),
    ] {
        let (gate, mut body) = passed(&bytes, true).await;
        assert!(!body.is_end_stream());
        let part = body.frame().await.unwrap().unwrap().into_data();
        let part = part.ok().unwrap();
        assert!(!part.has_remaining());
        assert_eq!(body.is_end_stream(), !has_trailers);
        if has_trailers {
            assert!(body.frame().await.unwrap().unwrap().is_trailers());
        }
        drop(body);
        assert_newer_waits_for(part, &gate).await;
    }
}
