//! Answers of an API server, or of a proxy before it: any status with any body, to each call of the
//! agent and the operator. A write that may have happened is never reported as one that did not.
//! The object that was read is the requested one. Messages stay short and on one line.
//!
//! The first line of an input is the status, and the rest is the body.

use std::convert::Infallible;
use std::time::Duration;

use futures::StreamExt as _;
use http::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use leasehold::k8s::convert::{lock, session};
use leasehold::k8s::{K8sFleet, K8sLockStore, K8sSessionStore};
use leasehold::protocol::ids::Resource;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::time::WallTime;
use leasehold::protocol::token::Revision;
use leasehold::store::fleet::{FeedEvent, FleetStore as _, Object, ObjectRef};
use leasehold::store::{LockStore as _, SessionStore as _, StoreError, Stored};
use serde_json::json;
use tower::service_fn;

use super::{Outcome, Target, no_seeds};

/// The maximum number of events to read from a watch or a feed.
const EVENTS_MAX: usize = 8;
/// How long to read, in paused time.
const PATIENCE: Duration = Duration::from_secs(20);
/// The maximum length of a message; a thousand characters of it may come from the API server.
const WORDS_MAX: usize = 1_400;

pub(crate) const TARGET: Target = Target {
    name: "cluster",
    run: |input| target(input, |code| code),
    broken: |input| target(input, as_a_conflict),
    seeds: no_seeds,
    words: &[
        "200\n",
        "201\n",
        "301\n",
        "400\n",
        "403\n",
        "404\n",
        "408\n",
        "409\n",
        "410\n",
        "422\n",
        "429\n",
        "500\n",
        "503\n",
        "kind",
        "Status",
        "code",
        "message",
        "reason",
        "details",
        "causes",
        "field",
        "metadata.uid",
        "name",
        "namespaces",
        "NotFound",
        "AlreadyExists",
        "Expired",
        "items",
        "metadata",
        "resourceVersion",
        "continue",
        "uid",
        "spec",
        "resource",
        "status",
        "holder",
        "lease",
        "token",
        "waiters",
        "type",
        "object",
        "ADDED",
        "MODIFIED",
        "DELETED",
        "BOOKMARK",
        "ERROR",
        "\n{\"type\": \"BOOKMARK\", \"object\": ",
        "exceeded quota",
        "ValidatingAdmissionPolicy",
        "404 page not found",
    ],
    tries: 1_500,
};

/// The server's status, and the results of the calls.
struct Asked {
    code: StatusCode,
    told: Vec<String>,
    is_taken: bool,
}

fn target(input: &[u8], change: fn(StatusCode) -> StatusCode) -> Outcome {
    let end = input.iter().position(|byte| *byte == b'\n');
    let (first, body) = input.split_at(end.unwrap_or(input.len()));
    let body = body.get(1..).unwrap_or_default().to_vec();
    let Some(code) = StatusCode::from_bytes(first).ok() else {
        return Outcome::Refused("no status".to_owned());
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(async {
        let answer = change(code);
        let server = service_fn(move |_request: Request<Body>| {
            let body = body.clone();
            async move {
                let answer = Response::builder().status(answer);
                Ok::<_, Infallible>(answer.body(Body::from(body)).expect("an answer"))
            }
        });
        let mut asked = Asked {
            code,
            told: Vec::new(),
            is_taken: false,
        };
        let client = Client::new(server, "ns");
        locks(&client, &mut asked).await;
        sessions(&client, &mut asked).await;
        fleet(&client, &mut asked).await;
        let told = asked.told.join(", ");
        if asked.is_taken {
            Outcome::Taken(told)
        } else {
            Outcome::Refused(told)
        }
    })
}

async fn locks(client: &Client, asked: &mut Asked) {
    let store = K8sLockStore::new(client.clone(), "ns");
    let resource = Resource::parse("r").expect("a resource");
    let got = asked.read(store.get(&resource).await);
    if let Some(found) = got.flatten() {
        assert_eq!(found.value.resource, resource, "another lock was read");
    }
    let looked = asked.read(store.get_with_revision(&resource).await);
    if let Some(found) = looked.and_then(|look| look.lock) {
        assert_eq!(found.value.resource, resource, "another lock was read");
    }
    asked.read(store.list_held_by(&"s".into()).await);
    asked.read(store.list(10, None).await);
    asked.read(store.list(10, Some("c")).await);
    let watched = store.watch(&"s".into(), Revision(1)).await;
    if let Some(events) = asked.read(watched) {
        let heard = tokio::time::timeout(PATIENCE, events.take(EVENTS_MAX).collect::<Vec<_>>());
        for event in heard.await.unwrap_or_default() {
            asked.read(event);
        }
    }
    asked.write(store.create(&resource).await);
    let current = held();
    let marked = current.value.marked_long_held(Some(WallTime(0)));
    let marked = marked.expect("it can be marked");
    asked.write(store.update(&current, &marked).await);
}

async fn sessions(client: &Client, asked: &mut Asked) {
    let store = K8sSessionStore::new(client.clone(), "ns");
    asked.read(store.get(&"s".into()).await);
    let current = session::read(json!({"metadata": {"name": "s", "resourceVersion": "7"},
        "spec": {"pod": "p", "podUid": "u", "ttlSeconds": 15, "agentVersion": "0"}}));
    let current = current.expect("a session");
    asked.write(store.create(&current.value).await);
    let renewed = current
        .value
        .renewed(WallTime(1), current.value.failures.clone());
    let renewed = renewed.expect("it can be renewed");
    asked.write(store.update(&current, &renewed).await);
}

async fn fleet(client: &Client, asked: &mut Asked) {
    let fleet = K8sFleet::new(client.clone());
    let place = ObjectRef {
        namespace: "ns".into(),
        name: "r".into(),
    };
    asked.read(fleet.revision().await);
    asked.read(fleet.lock(&place).await);
    asked.read(fleet.pod(&place).await);
    let current = Object {
        object_ref: place,
        uid: "u".into(),
        is_deleted: false,
        is_misnamed: false,
        set_at: None,
        stored: held(),
    };
    asked.write(fleet.delete_lock(&current.object_version()).await);
    let told = fleet.locks().take(EVENTS_MAX).collect::<Vec<_>>();
    let mut is_anew = false;
    for told in tokio::time::timeout(PATIENCE, told)
        .await
        .unwrap_or_default()
    {
        match told {
            FeedEvent::ListStarted => is_anew = true,
            FeedEvent::ListDone => assert!(is_anew, "a list ended that never started"),
            FeedEvent::Interrupted(error) => check_text(&error.to_string()),
            FeedEvent::Unreadable { why, .. } => check_text(&why),
            FeedEvent::Applied(_) | FeedEvent::Deleted(_) => {}
        }
    }
}

/// Returns a lock as it was read earlier.
fn held() -> Stored<Lock> {
    let object = json!({"metadata": {"name": "r", "resourceVersion": "7"}, "spec": {"resource": "r"},
        "status": {"token": 5000, "transitions": 1,
            "lease": {"id": "g", "acquiredAt": "2026-01-01T00:00:00.000000Z"},
            "holder": {"ownerId": "o", "pod": "p", "podUid": "u", "session": "s",
                "sessionTtlSeconds": 15}}});
    lock::read(object).expect("a lock")
}

impl Asked {
    /// A read has no effect, whatever its answer is.
    fn read<T>(&mut self, answer: Result<T, StoreError>) -> Option<T> {
        let error = match self.note(answer) {
            Ok(read) => return Some(read),
            Err(error) => error,
        };
        assert!(
            !matches!(error, StoreError::Ambiguous(_) | StoreError::Conflict),
            "a read reported as a write: {error:?}"
        );
        None
    }

    /// A write that may have happened is not reported as one that did not.
    fn write<T>(&mut self, answer: Result<T, StoreError>) {
        let Err(error) = self.note(answer) else {
            return;
        };
        let code = self.code;
        let may_have_happened =
            code.is_success() || code.is_server_error() || code == StatusCode::REQUEST_TIMEOUT;
        let is_unclear = matches!(error, StoreError::Ambiguous(_));
        assert_eq!(is_unclear, may_have_happened, "{code}: {error:?}");
    }

    fn note<T>(&mut self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        self.is_taken |= answer.is_ok();
        let name = match &answer {
            Ok(_) => "ok".to_owned(),
            Err(error) => {
                check_text(&error.to_string());
                kind(error)
            }
        };
        if self.told.last() != Some(&name) && self.told.len() < 6 {
            self.told.push(name);
        }
        answer
    }
}

fn kind(error: &StoreError) -> String {
    let text = format!("{error:?}");
    text.chars().take_while(char::is_ascii_alphabetic).collect()
}

fn check_text(words: &str) {
    assert!(words.chars().count() <= WORDS_MAX, "too long: {words}");
    assert!(!words.contains(char::is_control), "not one line: {words:?}");
}

/// Planted fault: reports a failed API server as a conflict.
fn as_a_conflict(code: StatusCode) -> StatusCode {
    if code.is_server_error() {
        return StatusCode::CONFLICT;
    }
    code
}
