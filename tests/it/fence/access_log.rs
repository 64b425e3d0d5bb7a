//! The access log: one event for each request, with what an operator needs and without the query.

use serde_json::Value;

use super::{Fence, post};
use crate::dev::eventually;

/// Waits for so many logged requests.
async fn logged(fence: &Fence, count: usize) -> Vec<Value> {
    eventually(async || {
        let mut events = fence.events();
        events.retain(|event| event["message"] == "request");
        (events.len() == count).then_some(events)
    })
    .await
}

/// Sends three requests: one that passes, one that is refused, and one whose client disconnects.
async fn send_three(flags: &[&str]) -> Fence {
    let (fence, service) = Fence::before_service(flags).await;
    let mut client = fence.connect().await;
    client
        .send(post(7, "").replace("/w", "/w?key=secret"))
        .await;
    let (mut upstream, head) = service.request().await;
    assert!(head.starts_with("POST /w?key=secret"), "{head}");
    upstream
        .send("HTTP/1.1 201 Created\r\nContent-Length: 5\r\n\r\nhello")
        .await;
    assert_eq!(client.answer().await.body, "hello");
    let stale = post(6, "").replace("/w", "/w?key=secret");
    let named = "Host: a\r\nX-Forwarded-For: 10.0.0.9\r\nX-Forwarded-For: 10.0.0.1, 10.0.0.2\r\n";
    client.send(stale.replace("Host: a\r\n", named)).await;
    assert_eq!(client.answer().await.status, 412);
    client
        .send("GET /slow?key=secret HTTP/1.1\r\nHost: a\r\n\r\n")
        .await;
    upstream.head().await;
    drop(client);
    // The fence has noticed it when it closes its own connection.
    upstream.rest().await;
    fence
}

#[tokio::test]
async fn each_request_is_logged_without_its_query() {
    let fence = send_three(&["--access-log=all"]).await;
    let events = logged(&fence, 3).await;
    let passed = &events[0];
    assert_eq!(passed["client"], "127.0.0.1");
    assert_eq!(
        (&passed["method"], &passed["urlPath"]),
        (&"POST".into(), &"/w".into())
    );
    assert_eq!(
        (&passed["resource"], &passed["fencingToken"]),
        (&"r".into(), &7.into())
    );
    assert_eq!(
        (&passed["status"], &passed["bytes"]),
        (&201.into(), &5.into())
    );
    assert!(
        passed["micros"].is_u64() && passed["code"].is_null(),
        "{passed}"
    );
    let refused = &events[1];
    assert_eq!(
        (&refused["status"], &refused["code"]),
        (&412.into(), &"stale_token".into())
    );
    assert_eq!(refused["fencingToken"], 6, "{refused}");
    assert_eq!(refused["forwardedFor"], "10.0.0.1, 10.0.0.2", "{refused}");
    let left = &events[2];
    assert_eq!(left["urlPath"], "/slow");
    assert!(left["status"].is_null(), "{left}");
    let all = format!("{:?}", fence.events());
    assert!(!all.contains("secret"), "{all}");
}

#[tokio::test]
async fn only_refused_requests_are_logged_by_default() {
    let mut fence = send_three(&[]).await;
    fence.signal("TERM");
    assert_eq!(fence.exit_code().await, Some(0));
    let events = logged(&fence, 1).await;
    assert_eq!(events[0]["code"], "stale_token");
}
