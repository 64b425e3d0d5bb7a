//! Requests that a proxy and a service may divide in different ways. The service here reads strictly, and records each
//! complete request and each violation.
//!
//! A case is refused with nothing complete for the service, or forwarded as exactly one request. Then the
//! connection serves a next request correctly, or is closed. `POST /smuggled` has no token: if the fence reads it as a
//! request, it refuses it, so the service receives it only past the fence.

mod recorder;

use serde::Deserialize;

use super::frames::{self, Frames, Stop};
use super::raw::Raw;
use super::{FENCED, Fence};
use recorder::{Recorder, Request};

const HTTP1: &str = include_str!("smuggling/http1.json");
const HTTP2: &str = include_str!("smuggling/http2.json");

const HOST: &str = "Host: example.test\r\n";
const SMUGGLED: &str = "POST /smuggled HTTP/1.1\r\nHost: example.test\r\nContent-Length: 0\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Accept {
    Refused,
    Forwarded,
    Either,
}

/// A case of either file.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    name: String,
    /// The rule: a section of an RFC, or a known attack.
    why: String,
    accept: Accept,
    /// The body that the service may receive.
    #[serde(default)]
    body: String,
    /// The bytes of the client, for HTTP/1.1.
    #[serde(default)]
    send: String,
    #[serde(default)]
    half_close: bool,
    /// The fields `name=value`, for HTTP/2.
    #[serde(default)]
    headers: Vec<String>,
    #[serde(default)]
    data: String,
    #[serde(default)]
    trailers: Vec<String>,
    /// The code of a reset after the data, for HTTP/2.
    #[serde(default)]
    reset: Option<u32>,
    /// Headers that the service must not receive.
    #[serde(default)]
    absent: Vec<String>,
    /// A header line that it must receive.
    #[serde(default)]
    header: Option<String>,
    /// The target that it must receive.
    #[serde(default)]
    target: Option<String>,
    /// The target of a valid request behind a refused one: it passes once, or not at all.
    #[serde(default)]
    next: Option<String>,
}

fn cases(corpus: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = serde_json::from_str(corpus).unwrap();
    for case in &mut cases {
        for text in [&mut case.send, &mut case.body, &mut case.data] {
            *text = text
                .replace("{fenced}", FENCED)
                .replace("{host}", HOST)
                .replace("{smuggled}", SMUGGLED);
        }
    }
    cases
}

impl Case {
    /// Returns what is wrong.
    fn judge(&self, seen: &[Request], violations: &[String]) -> Option<String> {
        if !violations.is_empty() {
            return Some(format!("not well-formed: {violations:?}"));
        }
        let next = self.next.as_deref();
        let of_case =
            |seen: &&Request| seen.target != "/next" && Some(seen.target.as_str()) != next;
        let of_case: Vec<_> = seen.iter().filter(of_case).collect();
        if seen
            .iter()
            .filter(|seen| Some(seen.target.as_str()) == next)
            .count()
            > 1
        {
            return Some("the request behind it passed twice".to_owned());
        }
        match (self.accept, &of_case[..]) {
            (Accept::Refused | Accept::Either, []) => None,
            (Accept::Forwarded | Accept::Either, [one]) => self.judge_forwarded(one),
            _ => Some(format!(
                "expected {:?}, and the service received {of_case:?}",
                self.accept
            )),
        }
    }

    fn judge_forwarded(&self, seen: &Request) -> Option<String> {
        let has = |name: &str| seen.header(name).is_some();
        let target_differs = self
            .target
            .as_ref()
            .is_some_and(|target| *target != seen.target);
        let lacks = self.header.as_ref().is_some_and(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            seen.header(name) != Some(value)
        });
        let is_open = matches!(seen.method.as_str(), "GET" | "HEAD");
        let is_fenced = seen.header("x-fencing-token") == Some("7")
            && seen.header("x-fencing-resource") == Some("r");
        let is_wrong = seen.body != self.body
            || self.absent.iter().any(|name| has(name))
            || target_differs
            || lacks
            || !(is_open || is_fenced);
        is_wrong.then(|| format!("the service received {seen:?}"))
    }
}

/// Sends a case, and a next request unless the fence has closed the connection.
async fn send_http1(fence: &Fence, case: &Case) -> Option<String> {
    let mut client = fence.connect().await;
    // Each character of a case is a byte.
    let bytes: Vec<_> = case
        .send
        .chars()
        .map(|one| u8::try_from(one).unwrap())
        .collect();
    let _closed_early = client.try_send(bytes).await;
    if case.half_close {
        client.half_close().await;
    }
    if !has_answer(&mut client, &case.send).await {
        return None;
    }
    let next = "GET /next HTTP/1.1\r\nHost: example.test\r\n\r\n";
    if client.try_send(next).await.is_err() {
        return None;
    }
    while let Some(answer) = client.find_answer().await {
        match (answer.status, answer.body.as_str()) {
            (200, "GET /next") => return None,
            // Of a pipelined request.
            (400.., _) | (200, "POST /second") => {}
            other => return Some(format!("the next response is {other:?}")),
        }
    }
    None
}

/// Reads the first response. Returns whether the connection continues.
async fn has_answer(client: &mut Raw, sent: &str) -> bool {
    loop {
        let Some(head) = client.find("\r\n\r\n").await else {
            return false;
        };
        if head.starts_with("HTTP/1.1 100") {
            continue;
        }
        let length = super::raw::header(&head, "content-length").unwrap_or("0");
        // The response to HEAD has a length and no body.
        let length = if sent.starts_with("HEAD") {
            0
        } else {
            length.parse().unwrap()
        };
        return client.exactly(length).await.is_some();
    }
}

async fn send_http2(fence: &Fence, case: &Case) -> Option<String> {
    let mut frames = Frames::connect(fence).await;
    let mut parts = vec![frames::headers(1, &case.headers, case.data.is_empty())];
    let ends = case.trailers.is_empty() && case.reset.is_none();
    if !case.data.is_empty() {
        parts.push(frames::data(1, &case.data, ends));
    }
    if !case.trailers.is_empty() {
        parts.push(frames::headers(1, &case.trailers, true));
    }
    if let Some(code) = case.reset {
        parts.push(frames::reset(1, code));
    }
    frames.send(&parts.concat()).await;
    if case.reset.is_none() && frames.until_end(1).await == Stop::Connection {
        return None;
    }
    let next = ["GET", "http", "/next", "example.test"];
    let names = [":method", ":scheme", ":path", ":authority"];
    let next = names.iter().zip(next);
    let next: Vec<_> = next
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    frames.send(&frames::headers(3, &next, true)).await;
    match frames.until_end(3).await {
        Stop::Reset => Some("the next request was reset".to_owned()),
        Stop::Response | Stop::Connection => None,
    }
}

async fn run(corpus: &str, send: impl AsyncFn(&Fence, &Case) -> Option<String>) {
    let recorder = Recorder::start().await;
    let fence = Fence::start(recorder.address, &["--client-idle=2"]).await;
    let mut failed = Vec::new();
    for case in cases(corpus) {
        let wrong = send(&fence, &case).await;
        let (seen, violations) = recorder.take();
        if let Some(wrong) = wrong.or_else(|| case.judge(&seen, &violations)) {
            failed.push(format!("{}: {wrong} ({})", case.name, case.why));
        }
    }
    assert!(failed.is_empty(), "{} failed: {failed:#?}", failed.len());
    // What arrived after its case was judged.
    let (late, violations) = recorder.take();
    assert!(
        late.is_empty() && violations.is_empty(),
        "{late:?} {violations:?}"
    );
}

#[tokio::test]
async fn corpus_of_http1_passes_the_fence_once_or_not_at_all() {
    run(HTTP1, send_http1).await;
}

#[tokio::test]
async fn corpus_of_http2_passes_the_fence_once_or_not_at_all() {
    run(HTTP2, send_http2).await;
}

/// The control: without a fence the same judge finds a smuggled request.
#[tokio::test]
async fn judge_finds_a_smuggled_request() {
    let recorder = Recorder::start().await;
    let mut client = Raw::connect(recorder.address).await;
    let cases = cases(HTTP1);
    let case = cases
        .iter()
        .find(|case| case.name == "incomplete_body")
        .unwrap();
    client
        .send(format!(
            "POST /w HTTP/1.1\r\n{FENCED}Content-Length: 0\r\n\r\n{SMUGGLED}"
        ))
        .await;
    assert_eq!(client.answer().await.status, 200);
    assert_eq!(client.answer().await.body, "POST /smuggled");
    let (seen, violations) = recorder.take();
    assert_eq!(seen.len(), 2);
    assert!(case.judge(&seen, &violations).is_some());
}

#[tokio::test]
async fn recorder_finds_ambiguous_framing() {
    for framing in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n",
        "Content-Length: +5\r\n",
        "X: a\nb\r\nContent-Length: 5\r\n",
        "Keep-Alive: 5\r\nContent-Length: 5\r\n",
    ] {
        let recorder = Recorder::start().await;
        let mut client = Raw::connect(recorder.address).await;
        client
            .send(format!("POST /w HTTP/1.1\r\n{FENCED}{framing}\r\nhello"))
            .await;
        client.rest().await;
        assert_eq!(recorder.take().1.len(), 1, "{framing}");
    }
}
