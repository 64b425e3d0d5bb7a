//! Connections: bounded in time, ended at the stop, and never the end of a lease.

use std::time::Duration;

use axum::body::Body;
use leasehold::http::serve::{Bounds, serve};
use leasehold::http::{HttpOptions, router};
use leasehold::{admin, agent::OnTerm};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::Sidecar;

/// Sends bytes as they are, and reads until the server has answered and closes or falls silent.
pub(super) async fn raw(sidecar: &Sidecar, request: &str) -> String {
    let mut stream = TcpStream::connect(sidecar.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// What the description says of requests that nobody can read.
#[tokio::test]
async fn what_is_no_readable_request_is_refused_without_a_document() {
    let sidecar = Sidecar::start().await;
    let long_url = format!("GET /{} HTTP/1.1\r\n", "x".repeat(65_535));
    let headers = "x: y\r\n".repeat(101);
    let many_headers = format!("GET / HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    for (request, status) in [
        ("garbage\r\n\r\n", "400 Bad Request"),
        (&long_url, "431 Request Header Fields Too Large"),
        (&many_headers, "431 Request Header Fields Too Large"),
    ] {
        let answer = raw(&sidecar, request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{answer}"
        );
        assert!(answer.contains("connection: close"), "{answer}");
        assert!(answer.ends_with("\r\n\r\n"), "an empty body: {answer}");
    }
    assert_eq!(sidecar.store.writes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_comes_is_given_up() {
    let sidecar = Sidecar::start().await;
    let never = futures::stream::pending::<Result<String, std::io::Error>>();
    let request = http::Request::post("/v1/locks/acquire")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Body::from_stream(never))
        .unwrap();
    let router = router(sidecar.agent.clone(), HttpOptions::default());
    let answer = router.oneshot(request).await.unwrap();
    assert_eq!(answer.status(), 408);
    let body = axum::body::to_bytes(answer.into_body(), 10_000)
        .await
        .unwrap();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["code"], "request_timeout");
    assert_eq!(sidecar.store.writes(), 0);
}

#[tokio::test]
async fn the_stop_ends_idle_connections_at_once_and_lets_busy_ones_finish() {
    let sidecar = Sidecar::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let slow = axum::Router::new().route(
        "/",
        axum::routing::get(async || {
            tokio::time::sleep(Duration::from_millis(200)).await;
            "done"
        }),
    );
    let served = tokio::spawn(serve(listener, slow, Bounds::API, stop.clone()));
    let mut idle = TcpStream::connect(address).await.unwrap();
    let mut busy = TcpStream::connect(address).await.unwrap();
    busy.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    stop.cancel();
    let mut answer = String::new();
    busy.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("done"), "{answer}");
    assert_eq!(idle.read(&mut [0; 8]).await.unwrap(), 0, "closed");
    tokio::time::timeout(Duration::from_secs(2), served)
        .await
        .expect("it must end")
        .unwrap();
    drop(sidecar);
}

#[tokio::test]
async fn connections_are_bounded_in_number_and_in_silence() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let bounds = Bounds {
        connections: 1,
        head_timeout: Duration::from_millis(300),
    };
    let router = axum::Router::new().route("/", axum::routing::get("done"));
    tokio::spawn(serve(listener, router, bounds, CancellationToken::new()));
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut second = TcpStream::connect(address).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    second.write_all(request).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(100), second.readable());
    assert!(early.await.is_err(), "the second waits for the first");
    silent.read_to_end(&mut Vec::new()).await.unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("done"), "{answer}");
}

#[tokio::test]
async fn a_client_that_hangs_up_before_its_answer_leaves_no_lock_held() {
    let sidecar = Sidecar::start().await;
    sidecar.lease("warm-up").await;
    let (entered, mut is_in) = tokio::sync::mpsc::unbounded_channel();
    // The write is refused until the client is gone.
    let (gone, is_gone) = std::sync::mpsc::channel::<()>();
    let mut hung_up = false;
    sidecar.store.on_call(move |call| {
        if call != crate::memory_store::Call::UpdateLock {
            return None;
        }
        let _nobody_counts = entered.send(());
        hung_up = hung_up || is_gone.try_recv().is_ok();
        (!hung_up).then_some(leasehold::store::StoreError::Conflict)
    });
    let caller = tokio::spawn({
        let body = serde_json::json!({"resource": "r", "ttlSeconds": 30});
        let request = sidecar
            .request(reqwest::Method::POST, "/v1/locks/acquire")
            .json(&body);
        async move { request.send().await }
    });
    is_in.recv().await.unwrap();
    caller.abort();
    gone.send(()).unwrap();
    // Whatever became of the try, another caller gets the lock soon.
    let soon = tokio::time::timeout(Duration::from_secs(5), async {
        while sidecar.acquire("r").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    soon.await.expect("the lock must come free");
}

#[tokio::test]
async fn the_admin_port_tells_local_facts_only() {
    let sidecar = Sidecar::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(
        listener,
        admin::router(sidecar.agent.clone()),
        Bounds::ADMIN,
        sidecar.stop.clone(),
    ));
    let get = async |path: &str| {
        let response = reqwest::get(format!("http://{address}{path}"))
            .await
            .unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    let away = leasehold::store::StoreError::Unavailable("connection refused".into());
    sidecar.store.fail_all(away);
    assert_eq!(get("/healthz").await.0, 200);
    assert_eq!(
        get("/readyz").await.0,
        200,
        "an outage of the store makes no pod unready"
    );
    sidecar.store.heal();
    sidecar.lease("secret-name").await;
    let (status, metrics) = get("/metrics").await;
    assert_eq!(status, 200);
    assert!(metrics.contains("leasehold_acquire_attempts_total{outcome=\"granted\"} 1"));
    assert!(!metrics.contains("secret-name"), "no lock is named");
    sidecar.agent.shut_down(OnTerm::ReleaseNow).await;
    assert_eq!(get("/readyz").await.0, 503);
    assert_eq!(get("/healthz").await.0, 200);
}
