//! The conformance suite tests the client with a sidecar. These tests have a server in its place
//! that does what a sidecar does not do on demand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold_client::{Client, Error};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::sleep;

/// What the server has read.
#[derive(Clone, Debug)]
struct Read {
    method: Method,
    path: String,
    body: Value,
}

/// A client, and the server that it talks to.
struct Tested {
    client: Client,
    reads: Arc<Mutex<Vec<Read>>>,
}

/// Starts a server. `None` never answers.
async fn serve(
    answer: impl Fn(&Read) -> Option<Response> + Clone + Send + Sync + 'static,
) -> Tested {
    let reads = Arc::new(Mutex::new(Vec::new()));
    let seen = reads.clone();
    let handler = move |request: Request| {
        let (answer, seen) = (answer.clone(), seen.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, 1 << 16).await.unwrap();
            let read = Read {
                method: parts.method,
                path: parts.uri.path().to_owned(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
            };
            seen.lock().unwrap().push(read.clone());
            match answer(&read) {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let app = Router::new().fallback(handler);
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = Client::new(&address).unwrap();
    Tested { client, reads }
}

impl Tested {
    /// Waits until a request fits.
    async fn eventually(&self, what: &str, fits: impl Fn(&Read) -> bool) -> Read {
        for _ in 0..1000 {
            if let Some(read) = self.reads.lock().unwrap().iter().find(|read| fits(read)) {
                return read.clone();
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("no {what}")
    }

    fn count(&self, fits: impl Fn(&Read) -> bool) -> usize {
        self.reads
            .lock()
            .unwrap()
            .iter()
            .filter(|read| fits(read))
            .count()
    }
}

fn granted() -> Value {
    json!({"resource": "r", "leaseId": "l", "fencingToken": 7, "ownerId": "o", "validForMs": 60000,
        "renewAfterMs": 20000, "completed": []})
}

fn problem(status: u16, code: &str) -> Response {
    let body = json!({"code": code, "detail": "no"}).to_string();
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}

/// Answers with a stream of packets, and leaves it open.
fn stream(packets: &[&str]) -> Response {
    let packets: Vec<_> = packets
        .iter()
        .map(|packet| Bytes::from((*packet).to_owned()))
        .collect();
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        for packet in packets {
            let _ = sender.send(packet).await;
            sleep(Duration::from_millis(10)).await;
        }
        sender.closed().await;
    });
    let body = futures_util::stream::unfold(receiver, |mut receiver| async {
        let packet: Bytes = receiver.recv().await?;
        Some((Ok::<_, std::io::Error>(packet), receiver))
    });
    (
        [(header::CONTENT_TYPE, "text/event-stream")],
        Body::from_stream(body),
    )
        .into_response()
}

fn is_release(read: &Read) -> bool {
    read.method == Method::DELETE && read.path == "/v1/locks/l"
}

#[tokio::test]
async fn another_server_is_refused() {
    for said in ["<html>hello</html>", "{}", r#"{"leaseId":"l"}"#, ""] {
        let server = serve(move |_| Some(said.into_response())).await;
        for lock in [
            server.client.lock("r"),
            server.client.lock("r").ttl(Duration::from_secs(60)),
        ] {
            let error = lock.acquire().await.unwrap_err();
            assert!(matches!(error, Error::Refused { .. }), "{said}: {error}");
            assert_eq!(error.code(), "not_a_sidecar", "{said}");
        }
    }
}

#[tokio::test]
async fn codes_decide_and_the_status_of_unknown_ones() {
    for (status, code, is_refused) in [
        (502, "object_refused", true),
        (503, "not_installed", false),
        (418, "new_code", true),
    ] {
        let server = serve(move |_| Some(problem(status, code))).await;
        let error = server.client.lock("r").acquire().await.unwrap_err();
        assert_eq!(
            matches!(error, Error::Refused { .. }),
            is_refused,
            "{code}: {error}"
        );
        assert_eq!((error.code(), server.count(|_| true)), (code, 1));
    }
}

#[tokio::test]
async fn events_may_come_in_pieces() {
    let acquired = format!("event: acquired\r\ndata: {}\r\n\r\n", granted());
    let lost =
        "event: lost\ndata: {\"leaseId\":\"l\",\"reason\":\"deleted\",\"detail\":\"gone: €\"}\n\n";
    let server = serve(move |_| {
        let (first, second) = acquired.split_at(25);
        // It says nothing of the validity, so it changes nothing.
        let future = "event: of-the-future\ndata: {\"leaseId\":\"l\"}\n\n";
        Some(stream(&[
            ": comment\n\n",
            first,
            second,
            future,
            &lost[..20],
            &lost[20..],
        ]))
    })
    .await;
    let lease = server.client.lock("r").acquire().await.unwrap();
    assert_eq!(lease.token(), 7);
    assert_eq!(lease.lost().await.to_string(), "gone: € (deleted)");
}

#[tokio::test]
async fn unanswered_grant_is_released() {
    let server = serve(|read| match read.body["waitSeconds"].as_u64() {
        Some(0) => Some(granted().to_string().into_response()),
        Some(_) => None,
        None => Some(StatusCode::NO_CONTENT.into_response()),
    })
    .await;
    let lock = server.client.lock("r").ttl(Duration::from_secs(60));
    let leaves = async { server.eventually("acquire", |_| true).await };
    let first = tokio::select! {
        _ = lock.acquire() => panic!("it has no answer"),
        first = leaves => first,
    };
    let again = |read: &Read| read.body["waitSeconds"] == 0;
    let repetition = server.eventually("repetition", again).await;
    assert_eq!(repetition.body["requestId"], first.body["requestId"]);
    server.eventually("release", is_release).await;
}

#[tokio::test]
async fn release_is_repeated_until_it_is_answered() {
    let count = Arc::new(Mutex::new(0));
    let server = serve(move |read| {
        if read.method != Method::DELETE {
            return Some(granted().to_string().into_response());
        }
        let mut count = count.lock().unwrap();
        *count += 1;
        Some(if *count < 3 {
            problem(503, "store_unavailable")
        } else {
            StatusCode::NO_CONTENT.into_response()
        })
    })
    .await;
    let lock = server.client.lock("r").ttl(Duration::from_secs(60));
    lock.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(server.count(is_release), 3);
}
