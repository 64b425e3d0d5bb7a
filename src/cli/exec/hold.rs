//! Holds a lock by a connection to a sidecar (`POST /v1/locks/hold`), and reads its events.
//!
//! Invariant: every moment counts from before the request was sent.

use anyhow::Context as _;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;

use crate::cli::client::{Connection, Server, read};
use crate::clock::{Clock as _, SystemClock};
use crate::protocol::completed::CompletionKey;
use crate::protocol::time::Moment;

/// The code of a problem document: another caller holds the lock.
const LOCK_HELD: &str = "lock_held";
/// The code for a cluster without our definitions: it does not go away in moments.
const NOT_INSTALLED: &str = "not_installed";
/// The longest that the API allows.
const MAX_HOLD_SECONDS: u32 = 604_800;
/// The maximum length of an event.
const EVENT_MAX_BYTES: usize = 64 * 1024;

/// What to hold, and how.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) resource: &'a str,
    pub(super) owner: Option<&'a str>,
    /// The name of the command, shown with the holder.
    pub(super) command: &'a str,
    /// How long to wait, in seconds; default: without a limit.
    pub(super) wait_seconds: Option<u64>,
}

/// A lock that is waited for or held. Closing the connection releases it.
pub(super) struct Hold {
    pub(super) connection: Connection,
    body: Incoming,
    buffer: Vec<u8>,
    sent: Moment,
}

/// The lease of the lock.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) id: String,
    pub(super) token: u64,
    pub(super) deadline: Moment,
    /// The keys of work that has succeeded; none from a server that does not know them.
    completed: Option<Vec<String>>,
}

/// What the sidecar reports.
#[derive(Debug)]
pub(super) enum Event {
    Waiting {
        holder: Option<Holder>,
        queue: Queue,
    },
    Acquired(Lease),
    /// The lease is valid until then.
    Valid(Moment),
    /// The session cannot be renewed at the moment.
    AtRisk,
    ReleaseRequested(Explained),
    Lost(Explained),
    Failed(Problem),
}

/// A reason with a sentence.
#[derive(Debug)]
pub(super) struct Explained {
    pub(super) reason: String,
    pub(super) detail: String,
}

/// A problem document.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    code: String,
    pub(super) detail: String,
    status: u16,
    pub(super) holder: Option<Holder>,
}

/// The holder of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Holder {
    pub(super) owner_id: String,
    pub(super) pod: String,
    pub(super) held_since: String,
}

/// The queue of a lock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Queue {
    /// The number of waiters besides this request.
    pub(super) length: u64,
    /// The position of the pod's entry, from 1; none without an entry, and from an older sidecar.
    pub(super) position: Option<u64>,
}

/// The data of all events and problem documents. Fields of later versions are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Data {
    lease_id: String,
    fencing_token: u64,
    valid_for_ms: u64,
    reason: String,
    detail: String,
    actor: String,
    message: String,
    holder: Option<Holder>,
    queue_length: u64,
    position: Option<u64>,
    code: String,
    status: u16,
    completed: Option<Vec<String>>,
}

impl Lease {
    /// Returns whether the work of this key had succeeded when the lock was acquired.
    ///
    /// # Errors
    /// If the server does not know completed work: it would neither show nor record a key.
    pub(super) fn has_completed(&self, key: &CompletionKey) -> anyhow::Result<bool> {
        let completed = self.completed.as_ref();
        let completed = completed.context("the sidecar is too old for --once; upgrade it")?;
        Ok(completed.iter().any(|one| one == key.as_str()))
    }
}

impl Problem {
    /// Returns whether another caller holds the lock.
    pub(super) fn is_held(&self) -> bool {
        self.code == LOCK_HELD
    }

    /// Returns whether a later try may succeed.
    pub(super) fn is_transient(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE.as_u16() && self.code != NOT_INSTALLED
    }

    /// Returns the problem of a response. It may come from another program than Leasehold.
    pub(super) fn parse(status: StatusCode, body: &[u8]) -> Self {
        let data: Data = serde_json::from_slice(body).unwrap_or_default();
        let detail = match data.detail.as_str() {
            "" => format!("the sidecar answered {status}; is it Leasehold's?"),
            detail => detail.to_owned(),
        };
        Self {
            status: status.as_u16(),
            detail,
            ..Self::of(data)
        }
    }

    /// Returns the problem of a request without a response.
    pub(super) fn transient(error: &anyhow::Error) -> Self {
        Self {
            code: String::new(),
            detail: format!("{error:#}"),
            status: StatusCode::SERVICE_UNAVAILABLE.as_u16(),
            holder: None,
        }
    }

    fn of(data: Data) -> Self {
        Self {
            code: data.code,
            detail: data.detail,
            status: data.status,
            holder: data.holder,
        }
    }
}

impl Hold {
    /// Opens the stream. A refusal is a problem.
    ///
    /// # Errors
    /// If the sidecar does not answer.
    pub(super) async fn open(
        sidecar: &Server,
        asked: &Request<'_>,
    ) -> anyhow::Result<Result<Self, Problem>> {
        let sent = SystemClock.now();
        let mut connection = sidecar.connect().await?;
        let mut body = json!({
            "resource": asked.resource,
            "metadata": {"command": asked.command},
            "maxHoldSeconds": MAX_HOLD_SECONDS,
        });
        if let Some(owner) = asked.owner {
            body["ownerId"] = json!(owner);
        }
        if let Some(seconds) = asked.wait_seconds {
            body["waitSeconds"] = json!(seconds);
        }
        let request = sidecar
            .request(Method::POST, "/v1/locks/hold")
            .header(CONTENT_TYPE, "application/json")
            .body(body.to_string())?;
        let answer = connection.sender.send_request(request).await?;
        let (status, body) = (answer.status(), answer.into_body());
        if status == StatusCode::OK {
            return Ok(Ok(Self {
                connection,
                body,
                buffer: Vec::new(),
                sent,
            }));
        }
        Ok(Err(Problem::parse(status, &read(body).await?)))
    }

    /// Waits for the next event; none at the end of the stream. Dropping the future loses nothing.
    ///
    /// # Errors
    /// If the connection or an event is broken.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Event>> {
        loop {
            if let Some(end) = end_of_event(&self.buffer) {
                let event: Vec<u8> = self.buffer.drain(..end).collect();
                if let Some(event) = parse(&event, self.sent)? {
                    return Ok(Some(event));
                }
                continue;
            }
            anyhow::ensure!(self.buffer.len() < EVENT_MAX_BYTES, "an event is too long");
            let Some(frame) = self.body.frame().await else {
                return Ok(None);
            };
            if let Some(data) = frame.context("the connection broke off")?.data_ref() {
                self.buffer.extend_from_slice(data);
            }
        }
    }
}

/// Returns the length of the first event in a buffer, with the empty line that ends it.
fn end_of_event(buffer: &[u8]) -> Option<usize> {
    let at = buffer.windows(2).position(|two| two == b"\n\n")?;
    Some(at + 2)
}

/// Parses one event; none if it is of a kind that this version does not know.
fn parse(event: &[u8], sent: Moment) -> anyhow::Result<Option<Event>> {
    let text = std::str::from_utf8(event).context("an event must be UTF-8")?;
    let field = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name))
    };
    let (Some(name), Some(data)) = (field("event: "), field("data: ")) else {
        return Ok(None);
    };
    let data: Data = serde_json::from_str(data).context("the data of an event must be JSON")?;
    let deadline = sent.after(std::time::Duration::from_millis(data.valid_for_ms));
    Ok(Some(match name {
        "waiting" => Event::Waiting {
            holder: data.holder,
            queue: Queue {
                length: data.queue_length,
                position: data.position,
            },
        },
        "acquired" => Event::Acquired(Lease {
            id: data.lease_id,
            token: data.fencing_token,
            deadline,
            completed: data.completed,
        }),
        "heartbeat" => Event::Valid(deadline),
        "at-risk" => Event::AtRisk,
        "release-requested" => {
            let by = if data.actor.is_empty() {
                data.detail
            } else {
                format!("{}: {}", data.actor, data.message)
            };
            Event::ReleaseRequested(Explained {
                reason: data.reason,
                detail: by,
            })
        }
        "lost" => Event::Lost(Explained {
            reason: data.reason,
            detail: data.detail,
        }),
        "error" => Event::Failed(Problem::of(data)),
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn event(text: &str) -> Option<Event> {
        let sent = Moment::since_boot(Duration::from_secs(100));
        parse(text.as_bytes(), sent).unwrap()
    }

    #[test]
    fn validity_counts_from_the_request() {
        let text = "event: acquired\ndata: {\"leaseId\":\"a.0\",\"fencingToken\":7,\"validForMs\":1500,\"new\":1}\n\n";
        let Some(Event::Acquired(lease)) = event(text) else {
            panic!("{text}");
        };
        let deadline = Moment::since_boot(Duration::from_millis(101_500));
        assert_eq!(
            (lease.id.as_str(), lease.token, lease.deadline),
            ("a.0", 7, deadline)
        );
        let heartbeat = event("event: heartbeat\ndata: {\"validForMs\":9}\n\n");
        assert!(matches!(heartbeat, Some(Event::Valid(_))));
    }

    #[test]
    fn server_that_does_not_know_completed_work_is_an_error() {
        let key = CompletionKey::parse("k").unwrap();
        let lease = |completed: &str| {
            let text = format!("event: acquired\ndata: {{\"leaseId\":\"a.0\"{completed}}}\n\n");
            match event(&text) {
                Some(Event::Acquired(lease)) => lease.has_completed(&key),
                other => panic!("{other:?}"),
            }
        };
        assert!(lease("").unwrap_err().to_string().contains("upgrade"));
        assert!(!lease(r#","completed":[]"#).unwrap());
        assert!(lease(r#","completed":["j","k"]"#).unwrap());
    }

    #[test]
    fn events_of_later_versions_are_ignored() {
        assert!(event("event: renamed\ndata: {}\n\n").is_none());
        assert!(event(": a comment\n\n").is_none());
    }

    #[test]
    fn event_ends_at_the_empty_line() {
        assert_eq!(end_of_event(b"event: a\ndata: {}\n"), None);
        assert_eq!(end_of_event(b"event: a\n\nevent: b\n\n"), Some(10));
    }

    #[test]
    fn refusals_say_whether_to_try_again() {
        let problem = |code: &str, status| {
            Problem::of(Data {
                code: code.into(),
                status,
                ..Data::default()
            })
        };
        assert!(problem("store_unavailable", 503).is_transient());
        assert!(!problem("not_installed", 503).is_transient());
        assert!(!problem("forbidden", 403).is_transient());
        assert!(problem("lock_held", 409).is_held());
    }
}
