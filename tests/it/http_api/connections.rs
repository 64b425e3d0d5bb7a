//! Connections: limited in time, closed at the stop, and without any effect on leases.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use leasehold::http::serve::{Bounds, serve};
use leasehold::http::{HttpOptions, router};
use leasehold::{admin, agent::OnTerm};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::ServiceExt;

use super::Sidecar;

/// Sends raw bytes, and reads until the server has answered and closes the connection or falls
/// silent.
pub(super) async fn raw(sidecar: &Sidecar, request: &str) -> String {
    let mut stream = TcpStream::connect(sidecar.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// The documented answer to unreadable requests.
#[tokio::test]
async fn unreadable_http_request_is_refused_with_an_empty_body() {
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
async fn missing_body_times_out() {
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
async fn stop_ends_idle_connections_and_lets_busy_ones_finish() {
    let slow = Slow::serve(Bounds::API.connections, Bounds::API.head_timeout).await;
    let mut idle = slow.connect().await;
    let mut busy = slow.connect().await;
    slow.ask(&mut busy).await;
    slow.stop.cancel();
    // If the stop closed it only at the end of the grace period, the busy one would be closed, too.
    let read = tokio::time::timeout(MINUTE, idle.read(&mut [0; 8])).await;
    assert!(matches!(read, Ok(Ok(0))), "closed: {read:?}");
    slow.answer(&mut busy).await;
    // Less than the grace period of remaining connections.
    tokio::time::timeout(Duration::from_secs(4), slow.served)
        .await
        .expect("it must end")
        .unwrap();
    is_closed(&mut busy).await;
}

/// A listener whose handler answers on demand, and counts its requests.
struct Slow {
    address: std::net::SocketAddr,
    entered: Arc<Semaphore>,
    go_on: Arc<Semaphore>,
    stop: CancellationToken,
    served: JoinHandle<()>,
    _stops_at_the_end: DropGuard,
}

impl Slow {
    async fn serve(connections: usize, head_timeout: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounds = Bounds {
            connections,
            head_timeout,
        };
        let entered = Arc::new(Semaphore::new(0));
        let go_on = Arc::new(Semaphore::new(0));
        let stop = CancellationToken::new();
        let (enter, wait) = (entered.clone(), go_on.clone());
        let slow = axum::routing::get(move || async move {
            enter.add_permits(1);
            wait.acquire().await.unwrap().forget();
            "done"
        });
        let router = axum::Router::new().route("/", slow);
        let served = tokio::spawn(serve(listener, router, bounds, stop.clone()));
        Self {
            address,
            entered,
            go_on,
            stop: stop.clone(),
            served,
            _stops_at_the_end: stop.drop_guard(),
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request, and returns when its handler has started.
    async fn ask(&self, stream: &mut TcpStream) {
        stream.write_all(REQUEST).await.unwrap();
        self.entered.acquire().await.unwrap().forget();
    }

    /// Completes one request, and reads the answer.
    async fn answer(&self, stream: &mut TcpStream) {
        self.go_on.add_permits(1);
        let mut answer = Vec::new();
        while !answer.ends_with(b"done") {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "closed");
        }
    }
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
const MINUTE: Duration = Duration::from_secs(60);

async fn is_closed(stream: &mut TcpStream) {
    let read = tokio::time::timeout(MINUTE, stream.read(&mut [0; 8])).await;
    assert!(matches!(read, Ok(Ok(0) | Err(_))), "{read:?}");
}

#[tokio::test]
async fn at_the_limit_unused_connections_close_before_idle_ones() {
    let slow = Slow::serve(3, MINUTE).await;
    let (mut used, mut silent) = (slow.connect().await, slow.connect().await);
    slow.ask(&mut used).await;
    slow.answer(&mut used).await;
    let mut busy = slow.connect().await;
    slow.ask(&mut busy).await;

    let mut first = slow.connect().await;
    slow.ask(&mut first).await;
    is_closed(&mut silent).await;
    let mut second = slow.connect().await;
    slow.ask(&mut second).await;
    is_closed(&mut used).await;
    for stream in [&mut busy, &mut first, &mut second] {
        slow.answer(stream).await;
    }
}

#[tokio::test]
async fn busy_connection_is_closed_only_after_it_became_idle() {
    let slow = Slow::serve(1, MINUTE).await;
    let mut busy = slow.connect().await;
    slow.ask(&mut busy).await;
    let mut second = slow.connect().await;
    second.write_all(REQUEST).await.unwrap();
    // The second request reaches the handler only after the first has its complete answer.
    slow.answer(&mut busy).await;
    slow.entered.acquire().await.unwrap().forget();
    is_closed(&mut busy).await;
    slow.answer(&mut second).await;
    assert_eq!(slow.entered.available_permits(), 0);
}

#[tokio::test]
async fn requests_are_served_beside_2000_idle_connections() {
    let slow = Slow::serve(64, MINUTE).await;
    let mut idle = Vec::new();
    for number in 0..2_000 {
        let mut stream = slow.connect().await;
        if number % 2 == 0 {
            // The first byte of a head; the rest is never sent.
            stream.write_all(b"G").await.unwrap();
        }
        idle.push(stream);
    }
    for _ in 0..10 {
        let mut stream = slow.connect().await;
        slow.ask(&mut stream).await;
        slow.answer(&mut stream).await;
    }
}

#[tokio::test]
async fn silent_connection_is_closed_after_a_timeout() {
    let slow = Slow::serve(1, Duration::from_millis(50)).await;
    let mut silent = slow.connect().await;
    is_closed(&mut silent).await;
    let mut begun = slow.connect().await;
    begun.write_all(b"GET / HT").await.unwrap();
    is_closed(&mut begun).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_before_its_answer_leaves_no_lock_held() {
    let sidecar = Sidecar::start().await;
    sidecar.lease("warm-up").await;
    let (entered, mut is_in) = tokio::sync::mpsc::unbounded_channel();
    // The write is refused until the client has disconnected.
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
    // Whatever the outcome of the attempt, another caller soon gets the lock.
    let soon = tokio::time::timeout(Duration::from_secs(5), async {
        while sidecar.acquire("r").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    soon.await.expect("the lock must become free");
}

#[tokio::test]
async fn admin_port_serves_local_facts_only() {
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
    sidecar.agent.shut_down(OnTerm::AppsEnded).await;
    assert_eq!(get("/readyz").await.0, 503);
    assert_eq!(get("/healthz").await.0, 200);
}
