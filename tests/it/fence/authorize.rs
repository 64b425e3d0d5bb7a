//! `--authorize`: another proxy forwards, and asks about each request.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};

use super::{Fence, any_command, post};
use crate::dev::eventually;

/// Longer than a check is held.
const SETTLES: Duration = Duration::from_secs(4);

async fn start(state: &Path) -> Fence {
    let command = any_command(state, &["--authorize", "--settle=4"]);
    Fence::spawn(command, tempfile::tempdir().unwrap()).await
}

/// Returns a fence that has nothing to settle.
async fn settled(state: &Path) -> Fence {
    let mut before = Fence::start_on(state, ([127, 0, 0, 1], 9).into(), &[]).await;
    before.signal("TERM");
    assert_eq!(before.exit_code().await, Some(0));
    start(state).await
}

/// Returns the status of a request, and its body.
async fn asked(fence: &Fence, request: impl AsRef<[u8]>) -> (u16, String) {
    let mut client = fence.connect().await;
    client.send(request).await;
    let answer = client.answer().await;
    (answer.status, answer.body)
}

#[tokio::test]
async fn answer_is_200_or_the_refusal() {
    let state = tempfile::tempdir().unwrap();
    let fence = settled(state.path()).await;
    assert_eq!(asked(&fence, post(7, "")).await, (200, String::new()));
    assert_eq!(asked(&fence, post(7, "")).await.0, 200);
    let (status, body) = asked(&fence, post(6, "")).await;
    assert!(
        status == 412 && body.contains("\"stale_token\""),
        "{status} {body}"
    );
    let (status, body) = asked(&fence, "POST /w HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(
        status == 428 && body.contains("\"token_required\""),
        "{status} {body}"
    );
    assert_eq!(
        asked(&fence, "GET /w HTTP/1.1\r\nHost: a\r\n\r\n").await.0,
        200
    );
    // nginx asks by HTTP/1.0.
    let old = post(7, "")
        .replace("HTTP/1.1", "HTTP/1.0")
        .replace("Content-Length: 0\r\n", "");
    assert_eq!(asked(&fence, old).await.0, 200);
}

#[tokio::test]
async fn newer_token_waits_after_each_older_request() {
    let state = tempfile::tempdir().unwrap();
    let fence = settled(state.path()).await;
    assert_eq!(asked(&fence, post(7, "")).await.0, 200);
    let last = SystemClock.now();
    assert_eq!(asked(&fence, post(7, "")).await.0, 200);
    let (status, body) = asked(&fence, post(8, "")).await;
    assert!(
        status == 503 && body.contains("\"unsettled\""),
        "{status} {body}"
    );
    let allowed = async || (asked(&fence, post(8, "")).await.0 == 200).then_some(());
    eventually(allowed).await;
    let first = SystemClock.now();
    assert!(first.since(last) >= SETTLES, "{:?}", first.since(last));
    // Requests with one token do not wait for each other.
    assert_eq!(asked(&fence, post(8, "")).await.0, 200);
}

#[tokio::test]
async fn request_that_was_allowed_is_unsettled_after_a_stop() {
    let state = tempfile::tempdir().unwrap();
    let mut fence = settled(state.path()).await;
    assert_eq!(asked(&fence, post(7, "")).await.0, 200);
    fence.signal("TERM");
    assert_eq!(fence.exit_code().await, Some(0));
    let starting = start(state.path()).await.event("fence starting").await;
    assert_eq!(starting["settleSeconds"], 4);
}

#[test]
fn settle_is_required_and_not_zero() {
    for flags in [&["--authorize"][..], &["--authorize", "--settle=0"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["fence", "--state-dir=/nonexistent"])
            .args(flags)
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains("--settle"), "{printed}");
    }
}
