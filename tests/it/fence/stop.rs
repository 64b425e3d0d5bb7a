//! Stops and starts: in order, by `kill -9`, and two fences with one state directory.

use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use tokio::net::TcpStream;

use super::raw::Service;
use super::{Fence, command, post};
use crate::dev::eventually;

const EMPTY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const SETTLES: &str = "--settle=2";

/// Returns how long a fence that starts waits for the requests of the one before it.
async fn settle_seconds(fence: &Fence) -> u64 {
    let starting = fence.event("fence starting").await;
    starting["settleSeconds"].as_u64().unwrap()
}

/// Waits until a fence accepts no connection.
async fn closed(fence: &Fence) {
    eventually(async || TcpStream::connect(fence.address).await.err()).await;
}

#[tokio::test]
async fn sigterm_lets_a_request_end_and_leaves_nothing_to_settle() {
    let state = tempfile::tempdir().unwrap();
    let service = Service::listen().await;
    let start = async || {
        Fence::start_on(state.path(), service.address(), &[SETTLES, "--drain=86400"]).await
    };
    let mut fence = start().await;
    // A connection without a request does not delay the stop.
    let mut idle = fence.connect().await;
    idle.send("P").await;
    let mut client = fence.connect().await;
    client.send(post(7, "")).await;
    let (mut upstream, _head) = service.request().await;
    fence.signal("TERM");
    closed(&fence).await;
    upstream.send(EMPTY).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(client.rest().await, "");
    assert_eq!(fence.exit_code().await, Some(0));
    let fence = start().await;
    assert_eq!(settle_seconds(&fence).await, 0);
    // The token is still known.
    let mut client = fence.connect().await;
    client.send(post(6, "")).await;
    assert_eq!(client.answer().await.status, 412);
}

#[tokio::test]
async fn request_that_outlasts_the_drain_has_an_unknown_outcome() {
    let state = tempfile::tempdir().unwrap();
    let service = Service::listen().await;
    let start =
        async || Fence::start_on(state.path(), service.address(), &[SETTLES, "--drain=0"]).await;
    let mut fence = start().await;
    let mut client = fence.connect().await;
    client.send(post(7, "")).await;
    let (_upstream, _head) = service.request().await;
    fence.signal("TERM");
    assert_eq!(fence.exit_code().await, Some(0));
    assert_eq!(client.rest().await, "");
    assert_eq!(settle_seconds(&start().await).await, 2);
}

#[tokio::test]
async fn killed_fence_waits_at_its_next_start() {
    let state = tempfile::tempdir().unwrap();
    let service = Service::listen().await;
    let start = async || Fence::start_on(state.path(), service.address(), &[SETTLES]).await;
    drop(start().await);
    let before = SystemClock.now();
    let fence = start().await;
    assert_eq!(settle_seconds(&fence).await, 2);
    // What needs no token does not wait.
    let mut open = fence.connect().await;
    open.send("GET /w HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let (mut upstream, head) = service.request().await;
    assert!(head.starts_with("GET /w"), "{head}");
    upstream.send(EMPTY).await;
    let mut client = fence.connect().await;
    client.send(post(7, "")).await;
    upstream.head().await;
    assert!(SystemClock.now().since(before) >= Duration::from_secs(2));
}

#[tokio::test]
async fn second_fence_on_one_state_directory_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let service = Service::listen().await;
    let _fence = Fence::start_on(state.path(), service.address(), &[]).await;
    let second = command(state.path(), service.address(), &[])
        .output()
        .unwrap();
    let printed = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{printed}");
    let last = printed.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("error: ") && last.contains("by another fence"),
        "{printed}"
    );
}
