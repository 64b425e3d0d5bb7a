//! What the fence does with clients and services that send too much, too slowly or nothing.

use std::fs;
use std::net::SocketAddr;

use super::raw::{Answer, header};
use super::{FENCED, Fence, post};
use crate::dev::eventually;

const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Checks the status and the code of a problem document.
fn assert_refused(answer: &Answer, status: u16, code: &str) {
    let problem: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(
        (answer.status, problem["code"].as_str()),
        (status, Some(code)),
        "{answer:?}"
    );
    let kind = header(&answer.head, "content-type");
    assert_eq!(kind, Some("application/problem+json"));
}

#[tokio::test]
async fn too_long_body_is_refused_by_its_length() {
    let (fence, service) = Fence::before_service(&["--max-body-bytes=5"]).await;
    let mut client = fence.connect().await;
    client.send(post(7, "123456")).await;
    assert_refused(&client.answer().await, 413, "body_too_large");
    // It did not reach the service: the next one is the first there.
    let mut client = fence.connect().await;
    client.send(post(7, "12345")).await;
    let (mut upstream, head) = service.request().await;
    assert_eq!(header(&head, "content-length"), Some("5"));
    upstream.send(EMPTY).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn too_long_body_is_refused_while_it_arrives() {
    let (fence, service) = Fence::before_service(&["--max-body-bytes=5"]).await;
    let mut client = fence.connect().await;
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    client
        .send(format!(
            "POST /w HTTP/1.1\r\n{FENCED}{chunked}5\r\n12345\r\n"
        ))
        .await;
    let (mut upstream, _head) = service.request().await;
    upstream.until("12345").await;
    client.send("1\r\n6\r\n").await;
    assert_refused(&client.answer().await, 413, "body_too_large");
    // The service can tell that it is not complete.
    assert_eq!(upstream.rest().await, "\r\n");
}

#[tokio::test]
async fn too_long_head_is_refused() {
    let (fence, _service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    let long = "a".repeat(70_000);
    let _closed_early = client
        .try_send(format!("GET /w HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"))
        .await;
    assert!(client.head().await.starts_with("HTTP/1.1 431"));
}

#[tokio::test]
async fn request_beyond_the_limit_is_refused_until_one_ends() {
    let (fence, service) = Fence::before_service(&["--max-requests=1"]).await;
    let mut first = fence.connect().await;
    first.send(post(7, "")).await;
    let (mut upstream, _head) = service.request().await;
    let mut second = fence.connect().await;
    second.send(post(7, "")).await;
    let answer = second.answer().await;
    assert_refused(&answer, 503, "too_many_requests");
    assert_eq!(header(&answer.head, "retry-after"), Some("1"));
    upstream.send(EMPTY).await;
    assert_eq!(first.answer().await.status, 200);
    second.send(post(7, "")).await;
    upstream.head().await;
    upstream.send(EMPTY).await;
    assert_eq!(second.answer().await.status, 200);
}

#[tokio::test]
async fn client_without_a_whole_head_is_disconnected() {
    let (fence, _service) = Fence::before_service(&["--client-idle=1"]).await;
    // "P" may become POST or the preface of HTTP/2.
    for start in [
        "",
        "P",
        "PRI * HTTP/2.0\r\n",
        "GET /w HTTP/1.1\r\nHost: a\r\n",
    ] {
        let mut client = fence.connect().await;
        client.send(start).await;
        let rest = client.rest().await;
        assert!(
            rest.is_empty() || rest.starts_with("HTTP/1.1 408"),
            "{rest}"
        );
    }
}

#[tokio::test]
async fn idle_client_is_disconnected() {
    let (fence, service) = Fence::before_service(&["--client-idle=1"]).await;
    let mut client = fence.connect().await;
    client.send(post(7, "")).await;
    let (mut upstream, _head) = service.request().await;
    upstream.send(EMPTY).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn stalled_body_of_a_client_is_its_timeout() {
    let (fence, service) = Fence::before_service(&["--upstream-timeout=1"]).await;
    let mut client = fence.connect().await;
    client
        .send(format!(
            "POST /w HTTP/1.1\r\n{FENCED}Content-Length: 9\r\n\r\nhello"
        ))
        .await;
    let (upstream, _head) = service.request().await;
    assert_refused(&client.answer().await, 408, "request_timeout");
    assert_eq!(upstream.rest().await, "hello");
}

#[tokio::test]
async fn silent_service_is_its_timeout() {
    let (fence, service) = Fence::before_service(&["--upstream-timeout=1"]).await;
    let mut client = fence.connect().await;
    client.send(post(7, "hello")).await;
    let (upstream, _head) = service.request().await;
    assert_refused(&client.answer().await, 504, "service_timeout");
    assert_eq!(upstream.rest().await, "hello");
}

#[tokio::test]
async fn connection_beyond_the_limit_waits_for_one_to_end() {
    let (fence, service) = Fence::before_service(&["--max-connections=1"]).await;
    let mut first = fence.connect().await;
    first.send(post(7, "")).await;
    let (mut upstream, _head) = service.request().await;
    let mut second = fence.connect().await;
    second.send(post(7, "")).await;
    upstream.send(EMPTY).await;
    assert_eq!(first.answer().await.status, 200);
    drop(first);
    upstream.head().await;
    upstream.send(EMPTY).await;
    assert_eq!(second.answer().await.status, 200);
}

/// A peer whose machine is gone closes nothing. The kernel finds out by keep-alive.
#[tokio::test]
async fn kernel_probes_idle_connections() {
    const ESTABLISHED: &str = "01";
    const KEEP_ALIVE: &str = "02:";
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    client.send(post(7, "")).await;
    let (_upstream, _head) = service.request().await;
    let port = |address: SocketAddr| format!(":{:04X}", address.port());
    let (own, of_service) = (port(fence.address), port(service.address()));
    eventually(async || {
        let connections = fs::read_to_string("/proc/net/tcp").unwrap();
        let connections = connections.lines().map(str::split_whitespace);
        let connections = connections.map(Iterator::collect::<Vec<_>>);
        let connections = connections.filter(|fields| {
            let is_of_fence = fields[1].ends_with(&own) || fields[2].ends_with(&of_service);
            is_of_fence && fields[3] == ESTABLISHED
        });
        let timers: Vec<_> = connections.map(|fields| fields[5].to_owned()).collect();
        assert_eq!(timers.len(), 2, "{timers:?}");
        let are_probed = timers.iter().all(|timer| timer.starts_with(KEEP_ALIVE));
        are_probed.then_some(())
    })
    .await;
}
