//! WebSockets through the fence.

use super::raw::{Raw, Service};
use super::{FENCED, Fence};

const WEBSOCKET: &str = "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// Opens one, and returns both of its ends.
async fn open(fence: &Fence, service: &Service, headers: &str) -> (Raw, Raw) {
    let mut client = fence.connect().await;
    client
        .send(format!("GET /chat HTTP/1.1\r\n{headers}{WEBSOCKET}"))
        .await;
    let (mut upstream, head) = service.request().await;
    assert!(head.contains("upgrade: websocket\r\n"), "{head}");
    let switched =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    upstream.send(switched).await;
    let head = client.head().await;
    assert!(
        head.starts_with("HTTP/1.1 101") && head.contains("upgrade: websocket"),
        "{head}"
    );
    (client, upstream)
}

#[tokio::test]
async fn websocket_needs_a_token_unless_it_is_open() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = fence.connect().await;
    client
        .send(format!("GET /chat HTTP/1.1\r\nHost: a\r\n{WEBSOCKET}"))
        .await;
    assert_eq!(client.answer().await.status, 428);
    open(&fence, &service, FENCED).await;
    let (fence, service) = Fence::before_service(&["--open-method=GET,WEBSOCKET"]).await;
    open(&fence, &service, "Host: a\r\n").await;
}

#[tokio::test]
async fn websocket_passes_bytes_in_both_directions() {
    let (fence, service) = Fence::before_service(&[]).await;
    let (mut client, mut upstream) = open(&fence, &service, FENCED).await;
    client.send("ping").await;
    upstream.until("ping").await;
    upstream.send("pong").await;
    client.until("pong").await;
    // The end of one side is the end of the other.
    drop(upstream);
    assert_eq!(client.rest().await, "");
}

#[tokio::test]
async fn newer_token_closes_the_websocket_of_an_older_one() {
    let (fence, service) = Fence::before_service(&[]).await;
    let (client, upstream) = open(&fence, &service, FENCED).await;
    // One of the same token stays.
    let (mut same, mut same_upstream) = open(&fence, &service, FENCED).await;
    same.send("ping").await;
    same_upstream.until("ping").await;
    let newer = FENCED.replace("Token: 7", "Token: 8");
    open(&fence, &service, &newer).await;
    assert_eq!(client.rest().await, "");
    assert_eq!(upstream.rest().await, "");
    assert_eq!(same.rest().await, "");
}
