//! Assertions that hold for every answer.

use std::time::Duration;

use axum::response::Response;
use http::HeaderMap;
use http::request::Parts;
use http::uri::Authority;
use serde_json::Value;

/// The largest integer that every JSON parser reads exactly.
const JSON_MAX: u64 = (1 << 53) - 1;

/// The host names that are always allowed.
const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// An answer, or the beginning of one that does not end.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
    /// The content: the one JSON value, or the data of the events.
    said: Vec<(String, Value)>,
}

impl Answer {
    pub(super) async fn read(response: Response, is_older: bool) -> Self {
        let (head, body) = response.into_parts();
        let body = super::beginning(body).await;
        let kind = head
            .headers
            .get("content-type")
            .map_or("", |kind| kind.to_str().unwrap());
        let said = match kind {
            "text/event-stream" if is_older => frames(&body),
            "text/event-stream" => events(&body),
            kind if kind.contains("json") => {
                vec![(
                    String::new(),
                    serde_json::from_slice(&body).expect("it is JSON"),
                )]
            }
            _ => Vec::new(),
        };
        Self {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            said,
        }
    }

    /// Returns the leases in the answer.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Value> {
        let granted = self
            .said
            .iter()
            .filter(|(event, said)| event == "acquired" || said["acquired"] == true);
        granted.map(|(_, said)| said)
    }

    /// Returns the kind of the answer.
    pub(super) fn name(&self) -> String {
        let said = self.said.iter();
        let codes: Vec<_> = said
            .map(|(event, said)| said["code"].as_str().unwrap_or(event))
            .collect();
        format!("{} {}", self.status, codes.join(" "))
    }
}

/// Returns the parts between the empty lines of a stream, without an incomplete last one.
fn parts(body: &[u8]) -> impl Iterator<Item = &str> {
    let text = std::str::from_utf8(body).expect("events are text");
    let (whole, _) = text.rsplit_once("\n\n").unwrap_or_default();
    whole.split("\n\n").filter(|part| !part.is_empty())
}

/// Returns the data of an older sidecar's stream. Its events have no name, and comments are
/// keepalives.
fn frames(body: &[u8]) -> Vec<(String, Value)> {
    let frames = parts(body).filter(|part| *part != ":");
    let data = frames.map(|part| {
        part.strip_prefix("data: ")
            .expect("it is data or a comment")
    });
    data.map(|data| {
        (
            String::new(),
            serde_json::from_str(data).expect("the data is JSON"),
        )
    })
    .collect()
}

/// Returns the complete events of a stream, with their data.
fn events(body: &[u8]) -> Vec<(String, Value)> {
    parts(body)
        .map(|frame| {
            let line = |field: &str| frame.lines().find_map(|line| line.strip_prefix(field));
            let data = line("data: ").expect("each has data");
            let event = line("event: ").expect("each has a name");
            (
                event.to_owned(),
                serde_json::from_str(data).expect("the data is JSON"),
            )
        })
        .collect()
}

/// Asserts that apps of older sidecars get a name and the time of its last update, and never a pod
/// that has not led.
pub(super) fn assert_names(answer: &Answer, leader: Option<&str>) {
    for (_, said) in &answer.said {
        let members = said.as_object().expect("it is an object");
        let is_known = |member: &String| ["name", "last_update"].contains(&member.as_str());
        assert!(members.keys().all(is_known), "{said}");
        let name = said["name"].as_str().expect("it has a name");
        assert!(name.is_empty() || Some(name) == leader, "{said}");
    }
}

/// Asserts that the answer is a problem document (RFC 9457) with a text.
pub(super) fn assert_problem(answer: &Answer) {
    // The store has no faults and the agent is new, so only the request can be wrong.
    assert!(answer.status < 500, "{answer:?}");
    assert_eq!(
        answer.headers["content-type"], "application/problem+json",
        "{answer:?}"
    );
    let [(_, problem)] = &answer.said[..] else {
        panic!("{answer:?}")
    };
    let code = problem["code"].as_str().expect("it has a code");
    assert_eq!(problem["type"], format!("urn:leasehold:problem:{code}"));
    assert_eq!(problem["status"], answer.status);
    assert!(
        problem["title"]
            .as_str()
            .is_some_and(|title| !title.is_empty()),
        "{problem}"
    );
    assert!(
        problem["detail"]
            .as_str()
            .is_some_and(|detail| detail.len() > 20),
        "{problem}"
    );
}

/// Asserts that an accepted request names a local host exactly once, and does not come from a web
/// page.
pub(super) fn assert_guarded(head: &Parts, answer: &Answer, allowed: &str) {
    let hosts: Vec<_> = head
        .headers
        .get_all("host")
        .iter()
        .map(|host| host.to_str().unwrap_or("?"))
        .collect();
    let site = head
        .headers
        .get("sec-fetch-site")
        .map(|site| site.to_str().unwrap_or("?"));
    let is_page = head.headers.contains_key("origin")
        || site.is_some_and(|site| !["none", "same-origin"].contains(&site));
    let may = |host: &str| {
        let rest = behind_local_name(host, allowed);
        rest.is_some_and(|rest| {
            rest.trim_start_matches(|c: char| c == ':' || c.is_ascii_digit())
                .is_empty()
        })
    };
    let must = |host: &str| {
        ["", ":80", ":7373"]
            .map(Some)
            .contains(&behind_local_name(host, allowed))
    };
    let authority = head.uri.authority().map(Authority::as_str);
    let told = answer
        .said
        .first()
        .and_then(|(_, said)| said["code"].as_str());
    let seen = format!("{hosts:?} {site:?} {authority:?} {told:?}");
    let all = |is: &dyn Fn(&str) -> bool| {
        hosts.len() == 1 && hosts.iter().copied().chain(authority).all(is)
    };
    match told {
        Some("host_not_allowed") => assert!(!all(&must), "{seen}"),
        Some("origin_refused") => assert!(all(&may) && is_page, "{seen}"),
        _ => assert!(all(&may) && !is_page, "{seen}"),
    }
}

/// Returns what follows the name of a local host, which may be a port. Returns `None` for other
/// hosts.
fn behind_local_name<'a>(host: &'a str, allowed: &str) -> Option<&'a str> {
    let end = match host.find(']') {
        Some(bracket) => bracket + 1,
        None => host.find(':').unwrap_or(host.len()),
    };
    let (name, rest) = host.split_at(end);
    let mut known = LOCAL.iter().chain([&allowed]);
    known
        .any(|known| known.eq_ignore_ascii_case(name))
        .then_some(rest)
}

/// Asserts that a lease's numbers are consistent. No app may act for longer than it requested,
/// counted from the answer, which took `took`.
pub(super) fn assert_lease(answer: &Answer, told: &Value, body: &str, took: Duration) {
    let number = |name: &str| {
        told[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name} in {told}"))
    };
    assert!(number("fencingToken") <= JSON_MAX);
    if let Some(header) = answer.headers.get("x-fencing-token") {
        assert_eq!(header.to_str().unwrap(), told["fencingToken"].to_string());
    }
    let asked: Value = serde_json::from_str(body).unwrap_or_default();
    if let (Some(ttl), Some(_)) = (asked["ttlSeconds"].as_u64(), told.get("validForMs")) {
        let valid_for = Duration::from_millis(number("validForMs"));
        assert!(
            valid_for <= Duration::from_secs(ttl) + took,
            "{told} after {took:?}"
        );
        assert!(number("renewAfterMs") <= number("validForMs"), "{told}");
    }
    assert!(answer.body.len() < 64 * 1024);
}
