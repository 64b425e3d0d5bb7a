//! The admin port: what the kubelet and Prometheus read.

use std::collections::BTreeMap;

use super::raw::{Answer, Raw, header};
use super::{Fence, post};
use crate::dev::eventually;

const ADMIN: &str = "--admin-listen=127.0.0.1:0";
/// The next request gets a connection of its own, which the test accepts.
const EMPTY: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
/// A name that is in no metric by chance.
const RESOURCE: &str = "accounts-of-june";

async fn get(fence: &Fence, path: &str) -> Answer {
    let events = fence.events();
    let listening = events.iter().find(|event| event["api"] == "admin").unwrap();
    let address = listening["address"].as_str().unwrap().parse().unwrap();
    let mut client = Raw::connect(address).await;
    client
        .send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
        .await;
    client.answer().await
}

async fn status(fence: &Fence, path: &str) -> u16 {
    get(fence, path).await.status
}

/// Returns the results that were counted.
fn results(metrics: &str) -> BTreeMap<&str, u64> {
    let prefix = "leasehold_fence_requests_total{result=\"";
    let samples = metrics.lines().filter_map(|line| line.strip_prefix(prefix));
    let counts = samples.map(|sample| {
        let (result, count) = sample.split_once("\"} ").unwrap();
        (result, count.parse().unwrap())
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

#[tokio::test]
async fn requests_are_counted_by_result_and_not_by_lock() {
    let (fence, service) = Fence::before_service(&[ADMIN]).await;
    assert_eq!(status(&fence, "/healthz").await, 200);
    assert_eq!(status(&fence, "/readyz").await, 200);
    let named = |token| post(token, "").replace("Resource: r", &format!("Resource: {RESOURCE}"));
    let open = "GET /w HTTP/1.1\r\nHost: a\r\n\r\n".to_owned();
    let unfenced = named(7).replace("X-Fencing-Token: 7\r\n", "");
    // Each result has a count of its own, so the test fails if two labels are swapped.
    for (count, request, expected) in [
        (1, open, 200),
        (2, named(7), 200),
        (3, named(6), 412),
        (4, unfenced, 428),
    ] {
        for _ in 0..count {
            let mut client = fence.connect().await;
            client.send(&request).await;
            if expected == 200 {
                let (mut upstream, _head) = service.request().await;
                upstream.send(EMPTY).await;
            }
            assert_eq!(client.answer().await.status, expected);
        }
    }
    let Answer { status, head, body } = get(&fence, "/metrics").await;
    assert_eq!(status, 200, "{body}");
    assert!(header(&head, "content-type").is_some_and(|kind| kind.starts_with("text/plain")));
    let expected = [
        ("open", 1),
        ("fenced", 2),
        ("stale_token", 3),
        ("token_required", 4),
    ];
    assert_eq!(results(&body), BTreeMap::from(expected), "{body}");
    assert!(body.contains("\nleasehold_fence_resources 1\n"), "{body}");
    assert!(!body.contains(RESOURCE), "{body}");
}

#[tokio::test]
async fn wait_is_measured_only_if_the_request_was_forwarded() {
    let (fence, service) = Fence::before_service(&[ADMIN]).await;
    let mut older = fence.connect().await;
    older.send(post(7, "")).await;
    let (_upstream, _head) = service.request().await;
    let mut newer = fence.connect().await;
    newer.send(post(8, "")).await;
    fence.event("request waits for older requests").await;
    drop(newer);
    assert_eq!(fence.event("request").await["code"], "abandoned_unsent");
    let metrics = get(&fence, "/metrics").await.body;
    let expected = "\nleasehold_fence_wait_seconds_count 1\n";
    assert!(metrics.contains(expected), "{metrics}");
}

#[tokio::test]
async fn draining_fence_is_healthy_and_not_ready() {
    let (mut fence, service) = Fence::before_service(&[ADMIN, "--drain=86400"]).await;
    let mut client = fence.connect().await;
    client.send(post(7, "")).await;
    let (mut upstream, _head) = service.request().await;
    assert_eq!(status(&fence, "/readyz").await, 200);
    fence.signal("TERM");
    let refusal = eventually(async || {
        let answer = get(&fence, "/readyz").await;
        (answer.status != 200).then_some(answer)
    });
    let refusal = refusal.await;
    assert_eq!((refusal.status, &*refusal.body), (503, "shutting down\n"));
    assert_eq!(status(&fence, "/healthz").await, 200);
    // Prometheus can still read the last counts.
    assert_eq!(status(&fence, "/metrics").await, 200);
    upstream.send(EMPTY).await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(fence.exit_code().await, Some(0));
}
