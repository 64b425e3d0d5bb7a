//! A newer token waits for older requests: until they have ended, and after an unknown outcome for `--settle`.
//!
//! `FOREVER` is longer than a test waits: what passes with it did not wait. The times are measured from before the cause,
//! so they cannot be too short on a slow machine.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use tokio_util::task::AbortOnDropHandle;

use super::raw::{Raw, Service};
use super::{FENCED, Fence, post};

const FOREVER: &str = "--settle=86400";
const SETTLE: Duration = Duration::from_secs(2);
const SETTLES: &str = "--settle=2";
const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Starts a request with token 7, and returns both of its ends.
async fn older(fence: &Fence, service: &Service) -> (Raw, Raw) {
    let mut client = fence.connect().await;
    client.send(post(7, "hello")).await;
    let (mut upstream, _head) = service.request().await;
    upstream.until("hello").await;
    (client, upstream)
}

/// Starts a request with token 7, whose body the service does not read, and waits until nothing moves any more. Dropping
/// the first aborts it.
pub(super) async fn unread(fence: &Fence, service: &Service) -> (AbortOnDropHandle<()>, Raw) {
    let mut client = fence.connect().await;
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    client
        .send(format!("POST /w HTTP/1.1\r\n{FENCED}{chunked}"))
        .await;
    let (upstream, _head) = service.request().await;
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let sending = tokio::spawn(async move {
        let chunk = format!("2000\r\n{}\r\n", "a".repeat(0x2000));
        while client.try_send(&chunk).await.is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        pending::<()>().await;
    });
    let (mut before, mut unchanged) = (0, 0);
    while before == 0 || unchanged < 3 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = sent.load(Ordering::Relaxed);
        unchanged = if now == before { unchanged + 1 } else { 0 };
        before = now;
    }
    (AbortOnDropHandle::new(sending), upstream)
}

/// Sends a request with token 8, and waits until it reaches the service.
pub(super) async fn newer_passes(fence: &Fence, service: &Service) {
    let mut client = fence.connect().await;
    client.send(post(8, "")).await;
    let (mut upstream, head) = service.request().await;
    assert!(head.contains("x-fencing-token: 8"), "{head}");
    upstream.send(EMPTY).await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn newer_token_passes_at_once_after_a_whole_response() {
    let (fence, service) = Fence::settled(&[FOREVER]).await;
    let (mut client, mut upstream) = older(&fence, &service).await;
    upstream
        .send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
        .await;
    assert_eq!(client.answer().await.body, "ok");
    drop(upstream);
    newer_passes(&fence, &service).await;
}

#[tokio::test]
async fn newer_token_passes_at_once_if_nothing_was_sent() {
    let (fence, service) = Fence::settled(&[FOREVER]).await;
    // Connections to it are refused from now on.
    drop(service);
    for token in [7, 8] {
        let mut client = fence.connect().await;
        client.send(post(token, "")).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, 502, "{answer:?}");
        assert!(answer.body.contains("service_unreachable"), "{answer:?}");
    }
}

#[tokio::test]
async fn newer_token_waits_while_an_older_request_runs() {
    let (fence, service) = Fence::settled(&[FOREVER, "--older-requests=86400"]).await;
    let (mut client, mut upstream) = older(&fence, &service).await;
    let mut newer = fence.connect().await;
    newer.send(post(8, "")).await;
    // An older token is stale as soon as the newer one is recorded.
    loop {
        let mut stale = fence.connect().await;
        stale.send(post(6, "")).await;
        if stale
            .answer()
            .await
            .body
            .contains("\"latestFencingToken\":8")
        {
            break;
        }
    }
    // Another resource does not wait.
    let mut other = fence.connect().await;
    other
        .send(post(1, "").replace("Resource: r", "Resource: other"))
        .await;
    let (mut other_upstream, head) = service.request().await;
    assert!(head.contains("x-fencing-resource: other"), "{head}");
    upstream.send(EMPTY).await;
    assert_eq!(client.answer().await.status, 200);
    // The connection that the older one has released.
    let head = upstream.head().await;
    assert!(head.contains("x-fencing-token: 8"), "{head}");
    upstream.send(EMPTY).await;
    assert_eq!(newer.answer().await.status, 200);
    other_upstream.send(EMPTY).await;
    assert_eq!(other.answer().await.status, 200);
}

#[tokio::test]
async fn newer_token_waits_after_its_client_disconnected() {
    let (fence, service) = Fence::before_service(&[SETTLES]).await;
    let (client, _upstream) = older(&fence, &service).await;
    let before = SystemClock.now();
    drop(client);
    newer_passes(&fence, &service).await;
    assert!(SystemClock.now().since(before) >= SETTLE);
}

#[tokio::test]
async fn newer_token_waits_after_a_service_failed() {
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart";
    for (part, seen) in [
        ("", "service_failed"),
        (cut, "part"),
        ("nonsense\r\n\r\n", "service_failed"),
    ] {
        let (fence, service) = Fence::before_service(&[SETTLES]).await;
        let (mut client, mut upstream) = older(&fence, &service).await;
        let before = SystemClock.now();
        upstream.send(part).await;
        drop(upstream);
        client.until(seen).await;
        newer_passes(&fence, &service).await;
        assert!(SystemClock.now().since(before) >= SETTLE, "{part}");
    }
}

#[tokio::test]
async fn newer_token_waits_after_a_timeout() {
    let (fence, service) = Fence::before_service(&[SETTLES, "--upstream-timeout=1"]).await;
    let before = SystemClock.now();
    let (mut client, _upstream) = older(&fence, &service).await;
    assert_eq!(client.answer().await.status, 504);
    newer_passes(&fence, &service).await;
    assert!(SystemClock.now().since(before) >= SETTLE + Duration::from_secs(1));
}

/// The control of the three tests above.
#[tokio::test]
async fn newer_token_waits_for_no_outcome_without_settling() {
    let (fence, service) = Fence::before_service(&["--settle=0"]).await;
    let (client, _upstream) = older(&fence, &service).await;
    drop(client);
    newer_passes(&fence, &service).await;
}

#[tokio::test]
async fn newer_token_cuts_an_older_request_without_response() {
    let (fence, service) = Fence::before_service(&["--older-requests=0"]).await;
    let (mut client, upstream) = older(&fence, &service).await;
    newer_passes(&fence, &service).await;
    let answer = client.answer().await;
    assert_eq!(answer.status, 504, "{answer:?}");
    assert!(answer.body.contains("the outcome is unknown"), "{answer:?}");
    assert_eq!(upstream.rest().await, "");
}

/// Nothing wakes the connection of the client, which waits for the rest.
#[tokio::test]
async fn newer_token_cuts_a_response_that_pauses() {
    let (fence, service) = Fence::before_service(&["--older-requests=0"]).await;
    let (mut client, mut upstream) = older(&fence, &service).await;
    upstream
        .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n")
        .await;
    client.until("part").await;
    newer_passes(&fence, &service).await;
    assert_eq!(upstream.rest().await, "");
    assert!(!client.rest().await.contains("0\r\n\r\n"));
}

/// The service may still work on the rest of the request.
#[tokio::test]
async fn newer_token_waits_after_a_response_before_the_body() {
    let (fence, service) = Fence::before_service(&[SETTLES]).await;
    let mut client = fence.connect().await;
    client
        .send(format!(
            "POST /w HTTP/1.1\r\n{FENCED}Content-Length: 10\r\n\r\nhello"
        ))
        .await;
    let (mut upstream, _head) = service.request().await;
    upstream.until("hello").await;
    let before = SystemClock.now();
    upstream
        .send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        .await;
    client.until("ok").await;
    client.send("world").await;
    upstream.until("world").await;
    // Not to be used again.
    drop(upstream);
    newer_passes(&fence, &service).await;
    assert!(SystemClock.now().since(before) >= SETTLE);
}

#[tokio::test]
async fn newer_token_cuts_an_endless_unread_response() {
    let (fence, service) = Fence::before_service(&["--older-requests=1"]).await;
    let (mut client, mut upstream) = older(&fence, &service).await;
    upstream
        .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    client.head().await;
    let endless = tokio::spawn(async move {
        let chunk = format!("2000\r\n{}\r\n", "a".repeat(0x2000));
        while upstream.try_send(&chunk).await.is_ok() {}
    });
    newer_passes(&fence, &service).await;
    endless.await.unwrap();
    let rest = client.rest().await;
    assert!(
        !rest.ends_with("0\r\n\r\n"),
        "the client cannot tell that it is not complete"
    );
}

#[tokio::test]
async fn newer_token_cuts_an_endless_body_that_is_not_read() {
    for response in ["", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"] {
        let (fence, service) =
            Fence::before_service(&["--older-requests=1", "--upstream-timeout=1"]).await;
        let mut client = fence.connect().await;
        let chunked = "Transfer-Encoding: chunked\r\n\r\n";
        client
            .send(format!("POST /w HTTP/1.1\r\n{FENCED}{chunked}"))
            .await;
        let (mut upstream, _head) = service.request().await;
        upstream.send(response).await;
        let endless = tokio::spawn(async move {
            let chunk = format!("2000\r\n{}\r\n", "a".repeat(0x2000));
            while client.try_send(&chunk).await.is_ok() {}
        });
        newer_passes(&fence, &service).await;
        let received = upstream.rest().await;
        assert!(
            !received.ends_with("0\r\n\r\n"),
            "the service cannot tell that it is not complete"
        );
        endless.await.unwrap();
    }
}

/// The fence has read the whole body: it is in its buffers and those of the kernel, which could send it later.
#[tokio::test]
async fn service_never_receives_the_rest_of_a_cut_body() {
    for length in [256, 1024, 2048, 4096].map(|kib| kib * 1024) {
        let flags = ["--older-requests=1", "--upstream-timeout=2"];
        let (fence, service) = Fence::before_service(&flags).await;
        let mut client = fence.connect().await;
        let head = format!("POST /w HTTP/1.1\r\n{FENCED}Content-Length: {length}\r\n\r\n");
        client.send(head).await;
        let (upstream, _head) = service.request().await;
        let sending = tokio::spawn(async move {
            let _closed_early = client.try_send("a".repeat(length)).await;
            client
        });
        newer_passes(&fence, &service).await;
        let received = upstream.rest().await.len();
        assert!(received < length, "{length} bytes arrived after the cut");
        sending.await.unwrap();
    }
}

/// hyper is in the middle of sending a part when the cut comes, and continues once the service reads.
#[tokio::test]
async fn newer_token_waits_while_a_service_may_read_on() {
    let flags = ["--older-requests=0", "--upstream-timeout=86400", SETTLES];
    let (fence, service) = Fence::settled(&flags).await;
    let (_client, upstream) = unread(&fence, &service).await;
    let mut newer = fence.connect().await;
    newer.send(post(8, "")).await;
    fence.event("cutting older requests").await;
    let before = SystemClock.now();
    upstream.rest().await;
    let (mut upstream, head) = service.request().await;
    assert!(SystemClock.now().since(before) >= SETTLE);
    assert!(head.contains("x-fencing-token: 8"), "{head}");
    upstream.send(EMPTY).await;
    assert_eq!(newer.answer().await.status, 200);
}

#[tokio::test]
async fn newer_token_cuts_a_body_that_is_on_its_way() {
    let (fence, service) = Fence::before_service(&["--older-requests=0"]).await;
    let mut client = fence.connect().await;
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    client
        .send(format!(
            "POST /w HTTP/1.1\r\n{FENCED}{chunked}5\r\nhello\r\n"
        ))
        .await;
    let (mut upstream, _head) = service.request().await;
    upstream.until("hello").await;
    // The response has begun: no task of the fence waits for its head.
    upstream
        .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    client.head().await;
    newer_passes(&fence, &service).await;
    let _closed_early = client.try_send("5\r\nworld\r\n0\r\n\r\n").await;
    let rest = upstream.rest().await;
    assert!(!rest.contains("world"), "{rest}");
}
