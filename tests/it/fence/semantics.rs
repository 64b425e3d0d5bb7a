//! What HTTP itself demands of a proxy: bodies that are absent, interim responses, upgrades that are refused.

use super::raw::header;
use super::{FENCED, Fence, post};

#[tokio::test]
async fn head_keeps_the_length_and_has_no_body() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    client.send("HEAD /w HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let (mut upstream, _head) = service.request().await;
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        .await;
    let head = client.head().await;
    assert_eq!(header(&head, "content-length"), Some("5"), "{head}");
    // The next response follows at once.
    client.send("GET /w HTTP/1.1\r\nHost: a\r\n\r\n").await;
    upstream.head().await;
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        .await;
    assert_eq!(client.answer().await.body, "hello");
}

#[tokio::test]
async fn responses_without_a_body_end_with_their_head() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    let mut upstream = None;
    for status in ["204 No Content", "304 Not Modified"] {
        client.send(post(7, "")).await;
        let upstream = match &mut upstream {
            None => upstream.insert(service.accept().await),
            Some(upstream) => upstream,
        };
        upstream.head().await;
        upstream
            .send(format!("HTTP/1.1 {status}\r\nETag: \"a\"\r\n\r\n"))
            .await;
        let head = client.head().await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        assert_eq!(header(&head, "etag"), Some("\"a\""));
        assert_eq!(header(&head, "transfer-encoding"), None, "{head}");
    }
    // Their outcome is known: a newer token passes although the connection is idle.
    client.send(post(8, "")).await;
    let mut upstream = upstream.unwrap();
    upstream.head().await;
    upstream.send("HTTP/1.1 204 No Content\r\n\r\n").await;
    client.until("204").await;
}

#[tokio::test]
async fn body_is_requested_only_of_a_request_that_passed() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    let expect = "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    client
        .send(format!("POST /w HTTP/1.1\r\nHost: a\r\n{expect}"))
        .await;
    let refused = client.head().await;
    assert!(refused.starts_with("HTTP/1.1 428"), "{refused}");
    let mut client = fence.connect().await;
    client
        .send(format!("POST /w HTTP/1.1\r\n{FENCED}{expect}"))
        .await;
    let interim = client.head().await;
    assert!(interim.starts_with("HTTP/1.1 100"), "{interim}");
    client.send("hello").await;
    let (mut upstream, head) = service.request().await;
    assert_eq!(header(&head, "expect"), None, "{head}");
    upstream.until("hello").await;
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn upgrade_to_http2_never_reaches_the_service() {
    let (fence, service) = Fence::before_service(&["--open-method=GET,WEBSOCKET"]).await;
    let mut client = fence.connect().await;
    let upgrade =
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n";
    client
        .send(format!("GET /w HTTP/1.1\r\nHost: a\r\n{upgrade}\r\n"))
        .await;
    let (mut upstream, head) = service.request().await;
    for name in ["upgrade", "connection", "http2-settings"] {
        assert_eq!(header(&head, name), None, "{head}");
    }
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn protocol_change_without_a_request_for_it_is_refused() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    client.send(post(7, "")).await;
    let (mut upstream, _head) = service.request().await;
    let switched =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n";
    upstream.send(switched).await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 502, "{answer:?}");
    assert!(answer.body.contains("service_failed"), "{answer:?}");
}

/// The service sees one host, the client, and that a proxy was between.
#[tokio::test]
async fn service_learns_of_the_client_and_the_fence() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    let own = "X-Forwarded-For: 192.0.2.1\r\nConnection: X-Private\r\nX-Private: a\r\n";
    client
        .send(format!("GET http://b/w?q HTTP/1.1\r\nHost: a\r\n{own}\r\n"))
        .await;
    let (_upstream, head) = service.request().await;
    assert!(head.starts_with("GET /w?q HTTP/1.1\r\n"), "{head}");
    assert_eq!(header(&head, "host"), Some("b"));
    assert_eq!(
        header(&head, "x-forwarded-for"),
        Some("192.0.2.1, 127.0.0.1")
    );
    assert_eq!(header(&head, "via"), Some("1.1 leasehold-fence"));
    assert_eq!(header(&head, "x-private"), None, "{head}");
}
