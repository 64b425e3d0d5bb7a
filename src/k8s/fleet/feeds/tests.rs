//! Tests how feeds handle an API server that hangs, that no longer has a revision, and that sends
//! nonsense. Requests reach it directly and in paused time: only a deliberate hang reaches the
//! limits on silence, and a slow machine does not. Real connections that break or stay silent are
//! tested in tests/e2e (`faults`, `waiting::faults`).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Response, Uri};
use serde_json::json;
use tokio::time::timeout;

use super::*;
use crate::crd::DistributedLock;
use crate::k8s::convert::lock;
use crate::protocol::lock::Lock;

const IMPATIENCE: Timeouts = Timeouts {
    watch_seconds: 1,
    silence: Duration::from_millis(200),
};

/// What the API server does with a request.
enum Act {
    /// Answers with this.
    Answer(u16, String),
    /// Sends this part of a response and nothing more, and keeps the connection open.
    Begin(String),
    /// Does not answer.
    Hang,
}

type Requests = Arc<Mutex<Vec<String>>>;

fn listed(version: u32, items: &[Value]) -> Act {
    let metadata = json!({"resourceVersion": version.to_string()});
    Act::Answer(
        200,
        json!({"metadata": metadata, "items": items}).to_string(),
    )
}

fn object(name: &str, version: u32) -> Value {
    json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
        "metadata": {"name": name, "namespace": "ns", "uid": "u",
            "resourceVersion": version.to_string()},
        "spec": {"resource": name}})
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn gone() -> String {
    json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}).to_string()
}

/// Returns a feed of an API server that performs these acts and then hangs, and its requests.
fn server(acts: impl IntoIterator<Item = Act>) -> (Feed<Object<Lock>>, Requests) {
    let requests = Requests::default();
    let seen = Arc::clone(&requests);
    let acts = Arc::new(Mutex::new(acts.into_iter().collect::<VecDeque<_>>()));
    let app = Router::new().fallback(move |uri: Uri| async move {
        let query = uri.query().unwrap_or_default();
        seen.lock().unwrap().push(query.to_owned());
        let act = acts.lock().unwrap().pop_front();
        match act {
            Some(Act::Answer(code, body)) => Response::builder()
                .status(code)
                .body(Body::from(body))
                .unwrap(),
            Some(Act::Begin(said)) => {
                let said = stream::iter([Ok::<_, std::io::Error>(Bytes::from(said))]);
                Response::new(Body::from_stream(said.chain(stream::pending())))
            }
            Some(Act::Hang) | None => std::future::pending().await,
        }
    });
    let client = ClientBuilder::new(app, "default").build();
    let reader = Reader {
        read: lock::read,
        read_free_lock: lock::read_free_lock,
    };
    let feed = objects_with::<DistributedLock, _>(&client, IMPATIENCE, reader);
    (feed, requests)
}

/// Returns the next events, each in a word or two.
async fn next(feed: &mut Feed<Object<Lock>>, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    while told.len() < count {
        let next = timeout(Duration::from_secs(60), feed.next()).await;
        told.push(match next.unwrap().unwrap() {
            FeedEvent::ListStarted => "list".to_owned(),
            FeedEvent::Applied(placed) => {
                format!("{} at {}", placed.object_ref, placed.stored.version)
            }
            FeedEvent::Unreadable { object_ref, .. } => format!("unreadable {object_ref}"),
            FeedEvent::Deleted(object_ref) => format!("gone {object_ref}"),
            FeedEvent::ListDone => "complete".to_owned(),
            FeedEvent::Interrupted(StoreError::NotInstalled(_)) => "not installed".to_owned(),
            FeedEvent::Interrupted(StoreError::WatchExpired(_)) => "expired".to_owned(),
            FeedEvent::Interrupted(StoreError::Unavailable(_)) => "unavailable".to_owned(),
            FeedEvent::Interrupted(StoreError::Denied(_)) => "denied".to_owned(),
            FeedEvent::Interrupted(error) => panic!("{error:?}"),
        });
    }
    told
}

#[tokio::test(start_paused = true)]
async fn listed_objects_and_changes_are_delivered_in_order() {
    let unreadable =
        json!({"metadata": {"name": "odd", "namespace": "ns", "resourceVersion": "4"}});
    let changes = [
        event("ADDED", &object("b", 6)),
        event("MODIFIED", &object("a", 7)),
        event(
            "BOOKMARK",
            &json!({"kind": "DistributedLock", "apiVersion": "leasehold.dev/v1alpha1",
            "metadata": {"resourceVersion": "8"}}),
        ),
        event("DELETED", &object("b", 9)),
    ];
    let acts = [
        listed(5, &[object("a", 3), unreadable]),
        Act::Begin(changes.concat()),
    ];
    let (mut feed, requests) = server(acts);
    let expected = [
        "list",
        "ns/a at 3",
        "unreadable ns/odd",
        "complete",
        "ns/b at 6",
        "ns/a at 7",
        "gone ns/b",
    ];
    assert_eq!(next(&mut feed, expected.len()).await, expected);
    let requests = requests.lock().unwrap();
    // Without a resourceVersion: the newest state, in pages.
    assert_eq!(requests[0], "&limit=500");
    assert!(
        requests[1].contains("allowWatchBookmarks=true"),
        "{requests:?}"
    );
    assert!(requests[1].ends_with("&resourceVersion=5"), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn hanging_list_is_abandoned() {
    let begun = Act::Begin("{\"metadata\": {\"resource".to_owned());
    let (mut feed, _) = server([Act::Hang, begun, listed(5, &[])]);
    let expected = [
        "list",
        "unavailable",
        "list",
        "unavailable",
        "list",
        "complete",
    ];
    assert_eq!(next(&mut feed, expected.len()).await, expected);
}

#[tokio::test(start_paused = true)]
async fn hanging_watch_is_reopened_at_its_revision() {
    let acts = [
        listed(5, &[]),
        Act::Begin(event("ADDED", &object("a", 6))),
        Act::Hang,
        Act::Begin(event("ADDED", &object("b", 7))),
    ];
    let (mut feed, requests) = server(acts);
    let expected = [
        "list",
        "complete",
        "ns/a at 6",
        "unavailable",
        "unavailable",
        "ns/b at 7",
    ];
    assert_eq!(next(&mut feed, expected.len()).await, expected);
    let requests = requests.lock().unwrap();
    assert!(requests[3].ends_with("&resourceVersion=6"), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn everything_is_relisted_after_the_watch_cannot_continue() {
    let too_new = json!({"kind": "Status", "code": 504, "reason": "Timeout", "message": "too new"});
    let refused_at_once = |code, body: String| vec![Act::Answer(code, body)];
    let nonsense = event("ADDED", &json!("what is this?"));
    for (store_error, word) in [
        (
            vec![Act::Answer(
                200,
                event("ERROR", &serde_json::from_str(&gone()).unwrap()),
            )],
            "expired",
        ),
        (refused_at_once(410, gone()), "expired"),
        (refused_at_once(504, too_new.to_string()), "unavailable"),
        (vec![Act::Answer(200, nonsense)], "unavailable"),
    ] {
        let mut acts = vec![listed(5, &[object("a", 3)])];
        acts.extend(store_error);
        acts.push(listed(9, &[]));
        let (mut feed, _) = server(acts);
        let expected = ["list", "ns/a at 3", "complete", word, "list", "complete"];
        assert_eq!(next(&mut feed, expected.len()).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn feed_names_a_missing_kind_and_a_missing_right() {
    let forbidden = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"});
    let no_kind = Act::Answer(404, "404 page not found\n".to_owned());
    let (mut feed, _) = server([no_kind, Act::Answer(403, forbidden.to_string())]);
    let expected = ["list", "not installed", "list", "denied"];
    assert_eq!(next(&mut feed, expected.len()).await, expected);
}

#[test]
fn pauses_grow_until_an_event_arrives() {
    let open = || stream::pending().boxed();
    let mut source = Source::<PartialPod> {
        events: open(),
        failures: 0,
        resumes: Resumes::IfPossible,
    };
    assert_eq!(max_backoff(source.failures), None);
    let mut longest = Vec::new();
    for _ in 0..8 {
        // Emitted before each list, even if the list fails.
        source.update(&Ok(Event::Init), open);
        source.update(&Err(watcher::Error::NoResourceVersion), open);
        longest.push(max_backoff(source.failures).unwrap().as_millis());
    }
    assert_eq!(longest, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    assert_eq!(max_backoff(u32::MAX), Some(BACKOFF_MAX));
    source.update(&Ok(Event::InitDone), open);
    assert_eq!(source.failures, 0);
}
