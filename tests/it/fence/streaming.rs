//! Bodies pass part by part, with their trailers, in both versions of HTTP.

use super::raw::header;
use super::{FENCED, Fence};

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

#[tokio::test]
async fn events_arrive_before_the_response_has_ended() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    client.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let (mut upstream, _head) = service.request().await;
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    upstream.send(format!("{head}data: 1\n\n")).await;
    let head = client.head().await;
    assert_eq!(header(&head, "content-type"), Some("text/event-stream"));
    client.until("data: 1\n\n").await;
    upstream.send("data: 2\n\n").await;
    client.until("data: 2\n\n").await;
    // A body without a length ends with its connection.
    drop(upstream);
    client.until("0\r\n\r\n").await;
}

#[tokio::test]
async fn request_body_arrives_before_it_has_ended() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    client
        .send(format!(
            "POST /w HTTP/1.1\r\n{FENCED}{CHUNKED}\r\n5\r\nfirst\r\n"
        ))
        .await;
    let (mut upstream, head) = service.request().await;
    assert_eq!(header(&head, "transfer-encoding"), Some("chunked"));
    upstream.until("first").await;
    // The response may begin first, too.
    upstream
        .send(format!("HTTP/1.1 200 OK\r\n{CHUNKED}\r\n3\r\none\r\n"))
        .await;
    client.until("one").await;
    client.send("6\r\nsecond\r\n0\r\n\r\n").await;
    upstream.until("second").await;
    upstream.until("0\r\n\r\n").await;
    upstream.send("3\r\ntwo\r\n0\r\n\r\n").await;
    client.until("two").await;
    client.until("0\r\n\r\n").await;
}

#[tokio::test]
async fn trailers_pass_in_both_directions() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    let head =
        format!("POST /w HTTP/1.1\r\n{FENCED}{CHUNKED}TE: trailers\r\nTrailer: X-Sum\r\n\r\n");
    client
        .send(format!("{head}1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n"))
        .await;
    let (mut upstream, head) = service.request().await;
    assert_eq!(header(&head, "te"), Some("trailers"), "{head}");
    assert_eq!(header(&head, "trailer"), Some("X-Sum"), "{head}");
    let body = upstream.until("\r\n\r\n").await;
    assert!(body.contains("0\r\nx-sum: 1\r\n"), "{body}");
    let head = format!("HTTP/1.1 200 OK\r\n{CHUNKED}Trailer: X-Sum\r\n\r\n");
    upstream
        .send(format!("{head}1\r\nb\r\n0\r\nX-Sum: 2\r\n\r\n"))
        .await;
    let head = client.head().await;
    assert_eq!(header(&head, "trailer"), Some("X-Sum"), "{head}");
    let body = client.until("\r\n\r\n").await;
    assert!(body.contains("0\r\nx-sum: 2\r\n"), "{body}");
}
