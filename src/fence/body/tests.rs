//! What hyper holds of a body still keeps newer tokens waiting.

use std::convert::Infallible;
use std::future::pending;

use futures::channel::mpsc;
use futures::{FutureExt as _, StreamExt as _};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;

use super::super::gate::{Gate, Limits, Recorded};
use super::super::memory::InMemory;
use super::super::metrics::Metrics;
use super::*;
use crate::clock::SystemClock;
use crate::protocol::ids::Resource;
use crate::protocol::token::Token;

/// Returns a body as hyper receives it.
async fn received(text: &str) -> Incoming {
    let (mut client, server) = tokio::io::duplex(1024);
    let head = format!(
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    client.write_all(head.as_bytes()).await.unwrap();
    client.write_all(text.as_bytes()).await.unwrap();
    let (bodies, mut received) = mpsc::unbounded();
    tokio::spawn(async move {
        let service = service_fn(move |request: Request<Incoming>| {
            bodies.unbounded_send(request.into_body()).unwrap();
            pending::<Result<Response<Empty<Bytes>>, Infallible>>()
        });
        let server = http1::Builder::new().serve_connection(TokioIo::new(server), service);
        let _ended = server.await;
        drop(client);
    });
    received.next().await.unwrap()
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
    let progress = Arc::new(Progress::new(clock, None));
    let mut body = RequestBody::new(
        received("hello").await,
        u64::MAX,
        progress,
        Some(Arc::new(older)),
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
