//! Tests what the stores send, and how they handle answers and silence, over a real connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{Method, Uri};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::crd::DistributedLock;
use crate::k8s::{K8sLockStore, connect};
use crate::protocol::ids::Resource as LockResource;
use crate::protocol::lock::Lock;
use crate::protocol::queue::Waiter;
use crate::protocol::session::{Claimant, PodRef};
use crate::protocol::time::{SessionTtl, WallTime};
use crate::store::{LockStore, Stored};

const PATH: &str = "/apis/leasehold.dev/v1alpha1/namespaces/ns/distributedlocks";

/// The timeout for a server that answers: a slow machine must not look like a server that hangs.
const LONG: Duration = Duration::from_secs(30);
/// The timeout for an answer that never arrives.
const SHORT: Duration = Duration::from_millis(300);

/// Every request as "METHOD path?query body".
type Requests = Arc<Mutex<Vec<String>>>;

fn client(address: SocketAddr) -> Client {
    let url = format!("http://{address}").parse().unwrap();
    connect(&kube::Config::new(url)).unwrap()
}

fn store(address: SocketAddr, timeout: Duration) -> K8sLockStore {
    K8sLockStore::new(client(address), "ns").with_timeout(timeout)
}

/// An API server that gives the same answer to everything.
async fn always(code: u16, answer: Value) -> (K8sLockStore, Requests) {
    let requests = Requests::default();
    let seen = Arc::clone(&requests);
    let app = Router::new().fallback(move |method: Method, uri: Uri, body: Bytes| async move {
        let body = String::from_utf8_lossy(&body);
        seen.lock()
            .unwrap()
            .push(format!("{method} {uri} {body}").trim_end().to_owned());
        (StatusCode::from_u16(code).unwrap(), answer.to_string())
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (store(address, LONG), requests)
}

/// Accepts each connection, reads a request, and sends `answer`, which may be empty. Then closes
/// the connection, or keeps it open if `hang` is set.
async fn raw(answer: &'static str, hang: bool) -> K8sLockStore {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = connection.read(&mut request).await;
                let _ = connection.write_all(answer.as_bytes()).await;
                if hang {
                    tokio::time::sleep(Duration::from_secs(60)).await;
                }
            });
        }
    });
    store(address, if hang { SHORT } else { LONG })
}

fn resource() -> LockResource {
    LockResource::parse("r").unwrap()
}

fn object(resource: &str) -> Value {
    json!({"metadata": {"name": "r", "uid": "1", "resourceVersion": "7"}, "spec": {"resource": resource},
        "status": {"token": 5000}})
}

fn stored() -> Stored<Lock> {
    crate::k8s::convert::lock::read(object("r")).unwrap()
}

async fn update(store: &K8sLockStore) -> StoreError {
    store.update(&stored(), &stored().value).await.unwrap_err()
}

#[tokio::test]
async fn get_and_list_request_the_newest_state() {
    let (store, requests) = always(200, object("r")).await;
    let lock = store.get(&resource()).await.unwrap().unwrap();
    assert_eq!((lock.version.0, lock.value.token.get()), (7, 5000));
    let (other, listings) = always(
        200,
        json!({"metadata": {"resourceVersion": "9"}, "items": []}),
    )
    .await;
    assert_eq!(other.list(1, None).await.unwrap().revision.0, 9);
    other.list(50, Some("a b")).await.unwrap();
    assert_eq!(*requests.lock().unwrap(), [format!("GET {PATH}/r")]);
    assert_eq!(
        *listings.lock().unwrap(),
        [
            format!("GET {PATH}?&limit=1"),
            format!("GET {PATH}?&limit=50&continue=a+b")
        ]
    );
}

#[tokio::test]
async fn a_new_lock_is_bare() {
    let (store, requests) = always(201, object("r")).await;
    store.create(&resource()).await.unwrap();
    let body = json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
        "metadata": {"name": "r", "namespace": "ns"}, "spec": {"resource": "r"}});
    assert_eq!(*requests.lock().unwrap(), [format!("POST {PATH}? {body}")]);
}

#[tokio::test]
async fn update_is_one_put_of_the_status_at_the_version_read() {
    let (store, requests) = always(200, object("r")).await;
    store.update(&stored(), &stored().value).await.unwrap();
    let requests = requests.lock().unwrap();
    assert_eq!(requests.len(), 1);
    assert!(
        requests[0].starts_with(&format!("PUT {PATH}/r/status? {{")),
        "{}",
        requests[0]
    );
    assert!(
        requests[0].contains(r#""resourceVersion":"7""#),
        "{}",
        requests[0]
    );
}

#[tokio::test]
async fn nothing_is_retried() {
    for code in [429, 500, 503, 504] {
        let (store, requests) = always(code, json!({"message": "no"})).await;
        update(&store).await;
        store.get(&resource()).await.unwrap_err();
        assert_eq!(requests.lock().unwrap().len(), 2, "after a {code}");
    }
}

#[tokio::test]
async fn another_resource_under_the_name_is_a_collision() {
    let (store, _) = always(200, object("other")).await;
    assert_eq!(
        store.get(&resource()).await.unwrap_err(),
        StoreError::Collision {
            name: "r".to_owned(),
            found: "other".to_owned()
        }
    );
}

#[tokio::test]
async fn missing_lock_is_none_and_missing_kind_is_an_error() {
    let (store, _) = always(404, json!({"reason": "NotFound", "details": {"name": "r"}})).await;
    assert!(store.get(&resource()).await.unwrap().is_none());
    let (store, _) = always(404, json!({"reason": "NotFound", "details": {}})).await;
    assert!(matches!(
        store.get(&resource()).await,
        Err(StoreError::NotInstalled(_))
    ));
}

fn invalid(reason: &str, field: &str) -> Value {
    json!({"kind": "Status", "reason": "Invalid", "message": "no", "details": {"name": "r",
        "causes": [{"reason": reason, "field": field, "message": "no"}]}})
}

/// Joins the queue of a lock with this status, on a server that rejects each request with
/// `refusal`. Returns the error and the methods of the requests.
async fn join(status: Value, refusal: Value) -> (StoreError, Vec<String>) {
    let (store, requests) = always(422, refusal).await;
    let mut object = object("r");
    object["status"] = status;
    let lock = crate::k8s::convert::lock::read(object).unwrap();
    let waiter = Waiter {
        grant: "g-b".into(),
        claimant: Claimant {
            owner: "b".into(),
            pod: PodRef {
                name: "b".into(),
                uid: "uid-b".into(),
                node: None,
            },
            session: "s-b".into(),
            session_ttl: SessionTtl::clamped(15),
        },
        queued_at: WallTime(0),
        preferred: false,
    };
    let error = store.join(&lock, &waiter).await.unwrap_err();
    let requests = requests.lock().unwrap();
    let methods = requests
        .iter()
        .map(|line| line.split(' ').next().unwrap().to_owned());
    (error, methods.collect())
}

#[tokio::test]
async fn join_refused_by_a_rule_is_checked_on_the_version_read() {
    let held = json!({
        "holder": {"ownerId": "a", "pod": "a", "podUid": "uid-a", "session": "s-a", "sessionTtlSeconds": 15},
        "lease": {"id": "g-a", "acquiredAt": "2026-01-01T00:00:00Z", "kept": false},
        "token": 5000, "waiters": [],
    });
    let full = invalid("FieldValueTooMany", "status.waiters");
    let (error, sent) = join(held.clone(), full).await;
    assert_eq!(
        (error, &*sent),
        (StoreError::QueueFull, &["PATCH".to_owned()][..])
    );

    let rule = invalid("FieldValueInvalid", "status");
    let (error, sent) = join(held.clone(), rule.clone()).await;
    assert_eq!(sent, ["PATCH", "PUT"]);
    assert_eq!(error, StoreError::Invalid("no".to_owned()));

    // The patch does not apply: the lock is free, or guards another resource.
    let unfit = json!({"kind": "Status", "reason": "Invalid", "message": "no", "details": {}});
    let (error, sent) = join(held.clone(), unfit).await;
    assert_eq!(
        (error, &*sent),
        (StoreError::Conflict, &["PATCH".to_owned()][..])
    );

    // An older agent holds it.
    let mut without = held.clone();
    without.as_object_mut().unwrap().remove("waiters");
    let (error, sent) = join(without, rule.clone()).await;
    assert_eq!(sent, ["PUT"]);
    assert_eq!(error, StoreError::Invalid("no".to_owned()));

    // Read as free: this version has no queue to check the waiter against.
    let (error, sent) = join(json!({"token": 5000}), rule).await;
    assert_eq!(
        (error, &*sent),
        (StoreError::Conflict, &["PATCH".to_owned()][..])
    );
}

#[tokio::test]
async fn refused_connection_is_unavailable_and_not_ambiguous() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = store(listener.local_addr().unwrap(), LONG);
    drop(listener);
    for error in [
        update(&store).await,
        store.get(&resource()).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, StoreError::Unavailable(what) if what.contains("cannot connect")),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn unclear_answer_makes_a_write_ambiguous_and_a_read_failed() {
    for (answer, hang) in [
        ("", false),
        ("", true),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"half\":",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"half\":",
            true,
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n{no}", false),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", false),
    ] {
        let store = raw(answer, hang).await;
        let error = update(&store).await;
        assert!(
            matches!(error, StoreError::Ambiguous(_)),
            "{answer:?}: {error:?}"
        );
        let error = store.create(&resource()).await.unwrap_err();
        assert!(
            matches!(error, StoreError::Ambiguous(_)),
            "{answer:?}: {error:?}"
        );
        let error = store.get(&resource()).await.unwrap_err();
        let is_clear = matches!(
            error,
            StoreError::Unavailable(_) | StoreError::Unreadable(_)
        );
        assert!(is_clear, "{answer:?}: {error:?}");
    }
}

#[tokio::test]
async fn invalid_object_name_is_not_requested() {
    let calls = Calls::new::<DistributedLock>(client(([127, 0, 0, 1], 1).into()), "ns");
    for name in ["", "..", "a/b", "a?b", "A"] {
        assert_eq!(calls.get(name).await, Ok(None), "{name:?}");
        for error in [
            calls.put_status(name, &json!({})).await.unwrap_err(),
            calls.merge(name, &json!({})).await.unwrap_err(),
            calls.delete(name, "u", Revision(1)).await.unwrap_err(),
        ] {
            assert!(
                matches!(error, StoreError::Invalid(_)),
                "{name:?}: {error:?}"
            );
        }
    }
}
